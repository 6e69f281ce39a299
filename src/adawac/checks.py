"""Checks of a call of the criterion.

Shapes, and what autograd knows of a tensor's origin, are checked in every step, since that costs nothing. Values are on
the device, and looking at them makes the host wait: on a GPU that happens in the first step, in a few later ones
(`due`), and in every one with `validate=True`.
"""

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adawac.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from adawac.algorithm import Criterion
    from adawac.objective import Latents, Levels, Objective

log = logging.getLogger(__name__)

_EARLY_CALLS = (3, 15, 63)  # calls, from 0, whose values are looked at besides those of every `_STRIDE`th
_STRIDE = 256
# What autograd calls operations that move numbers or cast them, and change none.
_MOVES = {"Cat", "Stack", "ToCopy", "Clone", "Alias", "View", "UnsafeView", "ReshapeAlias", "Permute", "Transpose", "T"}
_MOVES |= {"Slice", "Select", "Index", "Squeeze", "Unsqueeze", "Unbind", "Split", "Expand", "_DDPSink"}
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


def due(objective: "Objective", call: int) -> bool:
    """Tell whether the values of a call (from 0) are to be looked at, also where the host has to wait for them."""
    return objective.validate or call in _EARLY_CALLS or call % _STRIDE == 0


def batch(
    criterion: "Criterion",
    logits: "Levels",
    labels: "Levels",
    features: "Latents | None",
    index: Tensor,
    views: Tensor | None,
    *,
    values: bool,
) -> None:
    """Check a call of the criterion; `values` looks into labels and index, too."""
    log_odds = criterion.weights.log_odds
    if criterion.training and not torch.is_grad_enabled():
        raise ConfigError(
            "Expected gradients in training mode, but this call is under torch.no_grad(), where it would move the "
            "weights without the network. Call criterion.eval() for validation, and criterion.train() after it."
        )
    _index(index, len(log_odds))
    scales, targets = _levels("logits", logits), _levels("labels", labels)
    latents = _latents(features, criterion) if criterion.uses_latents else []
    _one_device(logits=scales[:1], labels=targets[:1], latents=latents[:1], index=[index], criterion=[log_odds])
    waits = index.device.type != "cpu" or torch.compiler.is_compiling()
    values = values or not waits
    if values and index.is_cuda and torch.cuda.is_current_stream_capturing():
        values = False  # a look would end the capture
    if values:
        _rows(index, len(log_odds))
        _left_out(criterion)
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
    if not torch.compiler.is_compiling():
        _no_activation(scales[0])
    if values:
        _no_probabilities(scales[0])
        if latents and len(scales[0]) == len(index):
            _first_view(scales[0], latents[0])


def _left_out(criterion: "Criterion") -> None:
    """Say once that increments were left out: nothing else shows it."""
    if not criterion.warned and (skipped := int(criterion.weights.skipped)):
        criterion.warned = True
        log.warning(
            "%d moves of the weights were left out so far (criterion.weights.skipped), since their losses were not "
            "finite. Look for NaN in images, logits and latents, and lower the learning rate or clip gradients.",
            skipped,
        )


def states(criterion: "Criterion", labelled: Tensor, index: Tensor) -> Tensor:
    """Return which samples are labelled, where that suits the batch and the criterion can ignore the others."""
    if criterion.objective.ignore_index is None:
        raise ConfigError(
            "Expected the option ignore_index, since `labelled` was given, but this criterion has none. Build it with "
            "ignore_index=255."
        )
    if not isinstance(labelled, Tensor) or labelled.dtype != torch.bool or labelled.shape != index.shape:
        raise ShapeError(
            f"Expected labelled to have True or False for each of {len(index)} samples, but got {_like(labelled)}. "
            "Give a tensor (B,) of type bool."
        )
    return labelled


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
            "Take the tensor out of what your network or loader returns, such as output['out'] or output.logits."
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
    if labels.dim() == logits.dim() - 1 and labels.shape[0] == logits.shape[0]:
        size = {2.0: "half-size", 4.0: "quarter-size"}.get(labels.shape[1] / logits.shape[2], "smaller")
        if all(side < whole for side, whole in zip(logits.shape[2:], labels.shape[1:], strict=True)):
            mode = {3: "linear", 4: "bilinear"}.get(logits.dim(), "trilinear")
            return (
                f"These are {size} logits, as Segformer and others return them. Upsample them: "
                f"torch.nn.functional.interpolate(logits, size=labels.shape[1:], mode={mode!r})."
            )
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


def _no_activation(logits: Tensor) -> None:
    """Refuse what autograd knows to be a softmax's or a sigmoid's output."""
    node = _origin(logits.grad_fn)
    name = "" if node is None else _operation(node).lower()
    if name in ("softmax", "sigmoid"):
        raise _probabilities(logits, f"its last operation is a {name}")


def _no_probabilities(logits: Tensor) -> None:
    """Refuse what went through a softmax or a sigmoid: the criterion's own softmax would silently flatten it."""
    few = [slice(None, None, -(-side // 16)) for side in logits.shape[2:]]
    pixels = logits.detach()[(slice(None), slice(None), *few)].float()
    low, high = pixels.amin(), pixels.amax()
    if bool((low >= 0) & ((pixels.sum(1) - 1).abs().amax() < 0.01)):
        raise _probabilities(logits, "they sum to 1 over the classes, as after a softmax")
    if bool((low >= 0) & (low < 0.1) & (high > 0.9) & (high <= 1)):
        raise _probabilities(logits, "they fill 0 to 1, as after a sigmoid")


def _probabilities(logits: Tensor, reason: str) -> ShapeError:
    return ShapeError(
        f"Expected logits, but got probabilities {_like(logits)}: {reason}. Take the activation off the network's end "
        "(activation=None in many), and call model.train() after validation: the criterion has its own softmax."
    )


def _operation(node: Any) -> str:
    """Return the name of what autograd noted, such as `Sigmoid`."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def _origin(node: Any) -> Any:
    """Return what computed the numbers that autograd's `node` may only have moved; None where no gradient is wanted."""
    while node is not None and node.next_functions and _operation(node) in _MOVES:
        node = node.next_functions[0][0]
    return node


def _first_view(logits: Tensor, latent: Tensor) -> None:
    """Refuse latents of which a later one, not the first, belongs to the one view that is supervised."""
    joined = latent.grad_fn
    if joined is None or _operation(joined) != "Cat":
        return
    first, *others = (_origin(node) for node, _ in joined.next_functions)
    ancestors: set[Any] = {None}
    waiting: list[Any] = [logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    if first not in ancestors and any(node in ancestors for node in others if node is not None):
        raise ShapeError(
            "Expected the supervised view's latent first, but the first view's latent is of another forward pass than "
            "the logits. Pass the supervised view, then the other one; run other passes under torch.no_grad(), or call "
            "tap.clear() after them."
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
