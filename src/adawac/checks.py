"""Checks of a call of the criterion.

Shapes are checked in every step, since that costs nothing. Values (labels, indices) are on the device, and looking at
them makes the host wait: on a GPU that happens in the first step, and in every one with `validate=True`.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adawac.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from adawac.algorithm import Criterion

_LABELS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def positive(name: str, value: int) -> int:
    """Return a count that is at least 1, Python's or NumPy's."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ConfigError(f"Expected {name} to be a whole number ≥ 1, but got {value!r}. Give len(train_set).")
    return count


def same_samples(saved: Tensor | None, current: Tensor) -> None:
    """Check that saved weights belong to as many samples as there are."""
    if saved is not None and saved.shape != current.shape:
        raise ShapeError(
            f"Expected the weights of {len(current)} samples, but the state dict has those of {len(saved)}. "
            "A row belongs to one sample: carry the weights over by sample id, or build the criterion with "
            f"num_samples={len(saved)}."
        )


def batch(
    criterion: "Criterion",
    logits: Tensor | Sequence[Tensor],
    labels: Tensor | Sequence[Tensor],
    features: Tensor | Sequence[tuple[float, Tensor]] | None,
    index: Tensor,
    views: Tensor | None,
    *,
    values: bool,
) -> None:
    """Check a call of the criterion; `values` looks into labels and index, too."""
    log_odds = criterion.weights.log_odds
    _index(index, len(log_odds))
    scales, targets = _levels("logits", logits), _levels("labels", labels)
    latents = _latents(features, criterion) if criterion.uses_latents else []
    _one_device(logits=scales[:1], labels=targets[:1], latents=latents[:1], index=[index], criterion=[log_odds])
    waits = index.device.type != "cpu" or torch.compiler.is_compiling()
    first, values = values, values or not waits
    if values:
        _rows(index, len(log_odds))
    if not isinstance(labels, Tensor):
        _no_views(scales, targets, len(index))
    targets = targets * len(scales) if isinstance(labels, Tensor) else targets
    weights = criterion.objective.supervision
    if not scales or len(targets) != len(scales) or (weights is not None and len(weights) != len(scales)):
        raise ShapeError(
            f"Expected as many label maps and supervision weights as logits, but got {len(scales)} logits, "
            f"{len(targets)} label maps and the weights {weights}. Give one label map for all, or one for each; views "
            'are concatenated, torch.cat(batch["labels"]).'
        )
    for level, (scale, target) in enumerate(zip(scales, targets, strict=True)):
        resized = isinstance(labels, Tensor) and level > 0
        _supervised(scale, target, len(index), criterion, values and not resized, resized)
    for latent in latents:
        _both_views(latent, len(index), views, criterion)
    if first:  # probabilities come in all steps or in none
        _no_probabilities(scales[0])


def _index(index: Any, num_samples: int) -> None:
    whole = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
    if not whole or index.dim() != 1 or len(index) == 0:
        raise ShapeError(
            "Expected index to be a vector of integers (int64), one for each sample of the batch, but got "
            f"{_like(index)}. {_index_advice(index, num_samples)}"
        )


def _index_advice(index: Any, num_samples: int) -> str:
    """Say what to do about an index of another type or shape."""
    if isinstance(index, Tensor) and index.numel() == 0:
        return "Give every call, on every rank, one sample at least."
    numbers = isinstance(index, list | tuple) and len(index) > 0 and all(isinstance(row, int) for row in index)
    if numbers or str(getattr(index, "dtype", None)).removeprefix("torch.").startswith(("int", "uint")):
        return "Make it one: torch.as_tensor(index, dtype=torch.int64).flatten()."
    return (
        f"Return each sample's row, 0..{num_samples - 1}, from your data set's __getitem__; number samples that have "
        "names: {name: row for row, name in enumerate(names)}."
    )


def _rows(index: Tensor, num_samples: int) -> None:
    lowest, highest = (int(bound) for bound in index.aminmax())
    if lowest < 0 or highest >= num_samples:
        raise ShapeError(
            f"Expected every index in 0..{num_samples - 1} (num_samples={num_samples}), but got values from "
            f"{lowest} to {highest}. Give each sample's row in the training set, and build the criterion with "
            "num_samples=len(train_set); if the set grew, carry the weights over."
        )


def _levels(name: str, argument: Any) -> list[Tensor]:
    """Return logits or labels as a list of resolutions."""
    levels = [argument] if isinstance(argument, Tensor) else argument
    if not isinstance(levels, list | tuple) or not all(isinstance(level, Tensor) for level in levels):
        raise ShapeError(
            f"Expected {name} to be a tensor, or a list of them (deep supervision), but got {_like(argument)}. "
            "Take the tensor out of what your network or loader returns, such as output['out']."
        )
    return list(levels)


def _no_views(logits: Sequence[Tensor], labels: Sequence[Tensor], size: int) -> None:
    """Refuse a list of two views: as two resolutions they would silently get unequal weights."""
    alike = len(logits) == len(labels) == 2 and logits[0].shape == logits[1].shape and labels[0] is not labels[1]
    if alike and len(logits[0]) == size:
        raise ShapeError(
            "Expected a list of logits to be one of resolutions (deep supervision), but got two of the same size, "
            f"{tuple(logits[0].shape)}, with a label map each. Concatenate views: torch.cat(logits), torch.cat(labels)."
        )


def _one_device(**tensors_of: Sequence[Tensor]) -> None:
    devices = {name: tensors[0].device for name, tensors in tensors_of.items() if tensors}
    if len(set(devices.values())) > 1:
        raise ShapeError(
            "Expected logits, labels, latents, index and the criterion on one device, but got "
            f"{', '.join(f'{name} on {device}' for name, device in devices.items())}. Move what is elsewhere: "
            'criterion.to(device), batch["index"].to(device).'
        )


def _supervised(logits: Tensor, labels: Tensor, size: int, criterion: "Criterion", values: bool, resized: bool) -> None:
    if logits.dim() < 3 or not logits.is_floating_point() or logits.shape[1] < 2:
        raise ShapeError(
            f"Expected logits (B or 2B, K ≥ 2, *size) of a floating type, but got {_like(logits)}. "
            "A network with one output for foreground needs two: background and foreground."
        )
    if len(logits) not in (size, 2 * size):
        raise ShapeError(
            f"Expected B or 2B rows of logits for the B = {size} samples of index, but got {len(logits)}. "
            "Concatenate the views: torch.cat([view_1, view_2])."
        )
    if criterion.objective.views == "both" and "views" in criterion.fixed and len(logits) == size:
        raise ShapeError(
            f"Expected {2 * size} rows of logits, both views of {size} samples, but got {size}. "
            "This method supervises both views; give both, or take the method baseline."
        )
    expected = (len(logits), *logits.shape[2:])
    actual = (len(labels), *logits.shape[2:]) if resized and labels.dim() == len(expected) else tuple(labels.shape)
    if actual != expected:
        raise ShapeError(
            f"Expected labels {expected} for logits {tuple(logits.shape)}, but got {_like(labels)}. "
            f"{_advice(logits, labels)}"
        )
    if labels.dtype not in _LABELS:
        raise ShapeError(
            f"Expected labels of an integer type that torch computes with, but got {_like(labels)}{_conversion(labels)}"
        )
    if values:
        _known_classes(labels, logits.shape[1], criterion.objective.ignore_index)


def _advice(logits: Tensor, labels: Tensor) -> str:
    """Say what to do about labels of another shape than the logits'."""
    if logits.dim() == labels.dim() + 2:
        return "Logits of several resolutions that are stacked go in as a list: logits.unbind(1)."
    if labels.dim() == logits.dim() and labels.shape[1] == 1:
        return "Give class numbers (not one-hot) without a channel: labels[:, 0]."
    if labels.shape == logits.shape:
        return "Give class numbers (not one-hot): labels.argmax(1)."
    return "Give class numbers (not one-hot), a label map for each row of the logits: torch.cat([labels_1, labels_2])."


def _conversion(labels: Tensor) -> str:
    """Say how labels of another type become class numbers; `.long()` would make background of soft ones."""
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        return (
            " with values between classes. Give class numbers, not soft labels: (labels > 0.5).long() for "
            "probabilities of the foreground; turn and resize label maps by nearest neighbour."
        )
    return ". Convert them with .long()."


def _known_classes(labels: Tensor, classes: int, ignored: int | None) -> None:
    lowest, highest = (int(bound) for bound in labels.aminmax())
    if lowest >= 0 and highest < classes:
        return
    unknown = [label for label in labels.unique().tolist() if not 0 <= label < classes and label != ignored]
    if unknown:
        raise ShapeError(
            f"Expected labels in 0..{classes - 1} (K = {classes} classes), but got {unknown[:8]}. Map them to "
            "consecutive classes, give the network more outputs, or name one of them as ignore_index."
        )


def _no_probabilities(logits: Tensor) -> None:
    """Refuse what went through a softmax: the criterion's own would silently flatten it."""
    sums = logits.detach().sum(1, dtype=torch.float32)
    if bool(((sums - 1).abs().amax() < 0.01) & (logits.detach().amin() >= 0)):
        raise ShapeError(
            f"Expected logits, but got probabilities {_like(logits)}: they sum to 1 over the classes. Take the softmax "
            "off the network's end (activation=None in many): the criterion has its own."
        )


def _latents(features: Any, criterion: "Criterion") -> list[Tensor]:
    """Return the latents that are compared, without their coefficients."""
    if features is None or (isinstance(features, list | tuple | Mapping) and not features):
        raise ShapeError(
            f"Expected the latents of both views, for {type(criterion).__name__} compares them, but got none. "
            "Give tap.pop() of an adawac.EncoderTap(model, ...)."
        )
    if isinstance(features, Tensor):
        return [features]
    pairs = list(features) if isinstance(features, list | tuple) else []
    if not pairs or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], Tensor) for pair in pairs
    ):
        raise ShapeError(
            "Expected the latents of both views as one tensor (2B, …), or as a list of (coefficient, tensor), but got "
            f"{_like(features)}. Give tap.pop(), or concatenate your own: torch.cat([latent_1, latent_2])."
        )
    return [latent for _, latent in pairs]


def _both_views(latent: Tensor, size: int, views: Tensor | None, criterion: "Criterion") -> None:
    if not latent.is_floating_point() or latent.dim() < 2 or len(latent) != 2 * size:
        doubled = " If they did, index names both views of each sample: give it once." if len(latent) == size else ""
        raise ShapeError(
            f"Expected latents of {2 * size} rows, both views of {size} samples, but got {_like(latent)}. "
            "Both views must pass the encoder between two calls of tap.pop(), and nothing else with gradients on: run "
            f"other passes under torch.no_grad().{doubled}"
        )
    if criterion.objective.aligned:
        _aligned(latent, views)


def _aligned(latent: Tensor, views: Tensor | None) -> None:
    spatial = latent.dim() - 2
    if spatial not in (2, 3):
        raise ShapeError(
            f"Expected latent maps (2B, C, *size) to align, but got {_like(latent)}. Give the tap the tokens' grid: "
            "adawac.EncoderTap(model, name, grid=(14, 14))."
        )
    if not isinstance(views, Tensor) or views.shape != (len(latent), spatial, spatial + 1):
        raise ShapeError(
            f"Expected the affine maps of the views, ({len(latent)}, {spatial}, {spatial + 1}), to align latents, "
            f'but got {"none" if views is None else _like(views)}. Give views=torch.cat(batch["views"]), or take '
            "aligned=False."
        )


def _like(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{tuple(x.shape)} of {str(x.dtype).removeprefix('torch.')}"
    if isinstance(x, Mapping):
        return f"a mapping with the keys {list(x)}"
    if isinstance(x, list | tuple) and x:
        return f"a {type(x).__name__} of {len(x)} {type(x[0]).__name__}"
    return repr(type(x))
