"""The samples of nnU-Net's training set and two views of each. Apart from the trainer: it works without nnU-Net."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from adawac.algorithm import SampleWeights


def case_rows(names: Iterable[str]) -> dict[str, int]:
    """Return each case's row, by the cases' sorted names: the same in every process and after every restart."""
    return {name: row for row, name in enumerate(sorted(map(str, names)))}


def beta_table(rows: Mapping[str, int], weights: SampleWeights) -> str:
    """Return `case,beta,log_odds` as CSV, a line a case; log-odds tell cases apart where β is all but 0 or 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["case", "beta", "log_odds"])
    beta, log_odds = weights.beta.tolist(), weights.log_odds.tolist()
    writer.writerows((case, f"{beta[row]:.6g}", f"{log_odds[row]:.6g}") for case, row in rows.items())
    return text.getvalue()


Levels = Tensor | list[Tensor]
"""An image or label map, or a list of label maps at falling resolutions (deep supervision)."""


class TwoViews:
    """A transform that augments a patch twice and stacks what comes out, (C, *S) → (2, C, *S).

    Args:
        transform: nnU-Net's, called with `image=` and `segmentation=`.
    """

    def __init__(self, transform: Callable[..., dict[str, Any]]):
        self.transform = transform

    def __call__(self, **patch: Tensor) -> dict[str, Any]:
        """Return both views of the patch, which stays as it is."""
        first, second = (self._view(patch) for _ in range(2))
        return {name: _stacked(first[name], second[name]) for name in first}

    def __repr__(self) -> str:
        return f"TwoViews({self.transform!r})"

    def _view(self, patch: dict[str, Tensor]) -> dict[str, Any]:
        return self.transform(**{name: value.clone() for name, value in patch.items()})  # transforms work in place


def as_list(levels: Levels) -> list[Tensor]:
    """Return the levels of deep supervision; a single one without it."""
    return [levels] if isinstance(levels, Tensor) else list(levels)


def _stacked(first: Levels, second: Levels) -> Levels:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.stack([first, second])
    return [torch.stack(pair) for pair in zip(first, second, strict=True)]


def joined(views: Levels, device: torch.device) -> Levels:
    """Return a batch of stacked views, (B, 2, C, *S), as all first views, then all second ones, (2B, C, *S)."""
    return _joined(views, device) if isinstance(views, Tensor) else [_joined(level, device) for level in views]


def _joined(views: Tensor, device: torch.device) -> Tensor:
    return views.to(device, non_blocking=True).transpose(0, 1).flatten(0, 1)
