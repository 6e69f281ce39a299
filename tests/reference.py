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


def cross_entropy(logits, label):
    """Eq. 2."""
    f, y = probabilities(logits), label.ravel()
    return -sum(math.log(f[j][y[j]]) for j in range(len(y))) / len(y)


def dice_loss(logits, label):
    """Appendix C: 1 - mean over classes of 2 p.q / (|p|_1 + |q|_1)."""
    f, y, classes = probabilities(logits), label.ravel(), logits.shape[0]
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
    dense = [bool((labels[i] > 0).any()) for i in range(size)]

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
