"""The paper in plain float64 loops: written from its equations, without a look at the package.

Slow on purpose. Sums run over pixels one by one, weights are multiplied and normalised as Algorithm 1 says.
"""

import math

import numpy as np


def softmax(scores):
    exponentials = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def probabilities(logits):
    """(K, H, W) -> list of d lists of K probabilities, and the pixels' order is that of the flattened label."""
    flat = logits.reshape(logits.shape[0], -1)
    return [softmax(list(flat[:, pixel])) for pixel in range(flat.shape[1])]


IGNORED = 255


def annotated(logits, label):
    """The probabilities and labels of the pixels that are not ignored."""
    pairs = [(p, y) for p, y in zip(probabilities(logits), label.ravel(), strict=True) if y != IGNORED]
    return [p for p, _ in pairs], [y for _, y in pairs]


def cross_entropy(logits, label):
    """Eq. 2."""
    f, y = annotated(logits, label)
    return -sum(math.log(f[j][y[j]]) for j in range(len(y))) / len(y)


def dice_loss(logits, label):
    """Appendix C: 1 - mean over classes of 2 p.q / (|p|_1 + |q|_1)."""
    f, y = annotated(logits, label)
    classes = logits.shape[0]
    total = 0.0
    for k in range(classes):
        overlap = sum(f[j][k] for j in range(len(y)) if y[j] == k)
        norms = sum(f[j][k] for j in range(len(y))) + sum(1 for value in y if value == k)
        total += 2 * overlap / norms
    return 1 - total / classes


def consistency(first, second, rho):
    """Eq. 3 without lambda."""
    a, b = first.ravel(), second.ravel()
    squares = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    if rho == "euclidean":
        return math.sqrt(squares)
    if rho == "rms":
        return math.sqrt(squares / len(a))
    if rho == "mse":
        return squares / len(a)
    if rho == "local-cosine":  # a pixel's channels are a vector
        pixels = [
            (x, y) for x, y in zip(first.reshape(len(first), -1).T, second.reshape(len(second), -1).T, strict=True)
        ]
        return sum(consistency(x, y, "cosine") for x, y in pixels) / len(pixels)
    return 1 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def mirror_ascent(beta, ell_ce, reg_ac, eta_beta):
    """Algorithm 1, lines 5-8, for one sample."""
    b = [beta, 1 - beta]
    b[0] *= math.exp(eta_beta * ell_ce)
    b[1] *= math.exp(eta_beta * reg_ac)
    return b[0] / (b[0] + b[1])


def paper_loss(method, beta, logits, labels, features, index, *, eta_beta, lambda_ac, rho, trim_ratio):
    """The paper's loss of a batch for one method; moves `beta` (a list over all samples) where the method has weights.

    `logits`, `labels` and `features` hold both views: rows 0..B-1 the first, B..2B-1 the second.
    """
    size = len(index)
    ce = [cross_entropy(logits[i], labels[i]) for i in range(size)]
    dice = [dice_loss(logits[i], labels[i]) for i in range(size)]
    if method == "pair":
        ce = [(ce[i] + cross_entropy(logits[size + i], labels[size + i])) / 2 for i in range(size)]
        dice = [(dice[i] + dice_loss(logits[size + i], labels[size + i])) / 2 for i in range(size)]
    ac = [lambda_ac * consistency(features[i], features[size + i], rho) for i in range(size)]
    dense = [bool(((labels[i] > 0) & (labels[i] != IGNORED)).any()) for i in range(size)]

    if method in ("baseline", "pair"):
        rest = sum(ce) / size
    elif method == "acr-only":
        rest = sum(ce[i] + ac[i] for i in range(size)) / size
    elif method == "pseudo-adawac":
        rest = sum(ce[i] if dense[i] else ac[i] for i in range(size)) / size
    elif method.startswith("trim"):
        if method.startswith("trim-train"):
            kept = [i for i in range(size) if dense[i]]
        else:
            ranked = sorted(range(size), key=lambda i: ce[i])
            kept = ranked[math.floor(trim_ratio * size) :]
        rest = sum(ce[i] for i in kept) / max(1, len(kept))
        if method.endswith("+acr"):
            rest += sum(ac) / size
    elif method in ("adawac", "reweight-only"):
        if method == "reweight-only":
            ac = [0.0] * size
        for i in range(size):
            beta[index[i]] = mirror_ascent(beta[index[i]], ce[i], ac[i], eta_beta)
        weights = [beta[index[i]] for i in range(size)]
        rest = sum(weights[i] * ce[i] + (1 - weights[i]) * ac[i] for i in range(size)) / size
    else:
        raise ValueError(method)
    return np.float64(sum(dice) / size + rest)


def partly_labelled_loss(method, beta, logits, labels, features, index, *, lambda_ac, rho, **options):
    """The loss of a batch with unlabelled samples, those whose first view has no pixel that is not ignored.

    Dice and cross-entropy are those of the labelled samples alone, as is all that a method decides. Consistency, where
    a method has it and does not trim, is the mean over all samples; that of an unlabelled one counts in full.
    """
    size = len(index)
    ours = [i for i in range(size) if (labels[i] != IGNORED).any()]
    both = [*ours, *(size + i for i in ours)]
    batch = logits[both], labels[both], features[both], [index[i] for i in ours]
    options |= {"lambda_ac": lambda_ac, "rho": rho}
    if method in ("baseline", "trim-train", "trim-train+acr", "trim-ratio", "trim-ratio+acr", "reweight-only"):
        return paper_loss(method, beta, *batch, **options) if ours else 0.0
    before = list(beta)
    total = paper_loss(method, beta, *batch, **options) if ours else 0.0
    ac = [lambda_ac * consistency(features[i], features[size + i], rho) for i in range(size)]
    if method == "adawac":
        weights = [1 - beta[index[i]] if i in ours else 1 for i in range(size)]
    elif method == "pseudo-adawac":
        weights = [0 if ((labels[i] > 0) & (labels[i] != IGNORED)).any() else 1 for i in range(size)]
    else:
        assert method == "acr-only"
        weights = [1] * size
    assert all(beta[i] == before[i] for i in set(range(len(beta))) - {index[i] for i in ours})
    old = sum(weights[i] * ac[i] for i in ours) / max(1, len(ours))  # the mean over labelled ones, which is in `total`
    return total - old + sum(weights[i] * ac[i] for i in range(size)) / size


def batch_dice(logits, labels, smooth):
    """1 - mean over classes of (2 p.q + smooth) / (p.p + q.q + smooth), the pixels of all samples together."""
    pixels = [pair for f, y in zip(logits, labels, strict=True) for pair in zip(*annotated(f, y), strict=True)]
    classes, total = logits.shape[1], 0.0
    for k in range(classes):
        overlap = sum(f[k] for f, y in pixels if y == k)
        squares = sum(f[k] ** 2 for f, _ in pixels) + sum(1 for _, y in pixels if y == k)
        total += (2 * overlap + smooth) / (squares + smooth)
    return 1 - total / classes


class RelativeAdaWAC:
    """AdaWAC in units of running means, with bounded weights: the preset `robust`."""

    def __init__(self, num_samples, *, eta_beta, lambda_ac, rho, bound):
        self.eta_beta, self.lambda_ac, self.rho, self.bound = eta_beta, lambda_ac, rho, bound
        self.beta = [0.5] * num_samples
        self.batches, self.mean_ce, self.mean_ac = 0, 1.0, 1.0

    def loss(self, logits, labels, features, index):
        size = len(index)
        ours = [i for i in range(size) if (labels[[i, size + i]] != IGNORED).any()]
        ce = {i: self.mean_ce_of_views(logits[[i, size + i]], labels[[i, size + i]]) for i in ours}
        dice = (batch_dice(logits[:size], labels[:size], 1e-5) + batch_dice(logits[size:], labels[size:], 1e-5)) / 2
        distances = [self.lambda_ac * consistency(features[i], features[size + i], self.rho) for i in range(size)]
        old = min(self.batches / (self.batches + 1), 0.98)
        if ours:
            self.mean_ce = old * self.mean_ce + (1 - old) * sum(ce.values()) / len(ours)
            self.mean_ac = old * self.mean_ac + (1 - old) * sum(distances[i] for i in ours) / len(ours)
            self.batches += 1
        ac = [self.lambda_ac * distance / self.mean_ac * self.mean_ce for distance in distances]
        for i in ours:
            self.beta[index[i]] = mirror_ascent(self.beta[index[i]], ce[i], ac[i], self.eta_beta / self.mean_ce)
        low = 1 / (1 + math.exp(self.bound))
        for i in index:
            self.beta[i] = min(max(self.beta[i], low), 1 - low)
        weights = [self.beta[index[i]] if i in ours else 0 for i in range(size)]
        supervised = sum(weights[i] * ce[i] for i in ours) / max(1, len(ours))
        return 0.5 * (dice * bool(ours) + supervised + sum((1 - weights[i]) * ac[i] for i in range(size)) / size)

    @staticmethod
    def mean_ce_of_views(logits, labels):
        views = [cross_entropy(f, y) for f, y in zip(logits, labels, strict=True) if (y != IGNORED).any()]
        return sum(views) / len(views)
