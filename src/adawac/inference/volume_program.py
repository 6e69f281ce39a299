"""A network with all that `predict` does around it as one TorchScript program: intensities in, label values out.

Programs that know torch alone can run it. Its numbers are those of `Preprocessing`, `Predictor` and SciPy: the tests
compare them bit for bit. TorchScript compiles the classes below from their source, so they keep to what it knows.
"""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from adawac.data.preprocessing import Preprocessing
from adawac.errors import RunError
from adawac.files import beside
from adawac.inference.label_files import label_dtype
from adawac.inference.predictor import Predictor, default_batch
from adawac.inference.trained_network import Trained
from adawac.lazy import quietly


class VolumeProgram(nn.Module):
    """Segments whole scans whose voxel axes point where those of the training data do.

    Args:
        network: Takes slices (P, C, h, w) of the network's size and gives logits (P, K, h, w).
        preprocessing: Of the training data; its orientation must have been applied.
        image_size: The network's input.
        resize: How slices come to that size: `bilinear`, `cubic` or `released`.
        values: What stands for each class in the label map.
    """

    axis: Final[int]
    normalisation: Final[str]
    resize: Final[str]
    windowed: Final[bool]
    low: Final[float]
    high: Final[float]
    clip_quantile: Final[float]
    resampled: Final[bool]
    height: Final[int]
    width: Final[int]
    batch: Final[int]
    batch_cuda: Final[int]
    values: Tensor

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        image_size: Sequence[int],
        resize: str,
        values: Sequence[int],
    ):
        super().__init__()
        self.network = network
        self.axis, self.normalisation, self.resize = preprocessing.axis, preprocessing.normalisation, resize
        self.windowed, self.resampled = preprocessing.window is not None, preprocessing.spacing is not None
        self.low, self.high = map(float, preprocessing.window or (-math.inf, math.inf))
        self.clip_quantile = preprocessing.clip_quantile or 0.0
        self.spacing = [float(step) for step in preprocessing.spacing or (0, 0, 0)]
        self.height, self.width = image_size
        self.batch, self.batch_cuda = (default_batch(kind, image_size) for kind in ("cpu", "cuda"))
        numpy_type = label_dtype(values)
        self.register_buffer("values", torch.tensor(list(values), dtype=getattr(torch, numpy_type.name)))

    def forward(self, volumes: Tensor, affine: Tensor | None = None) -> Tensor:
        """Return label maps (B, 1, X, Y, Z) of scans (B, C, X, Y, Z); `affine` (B, 4, 4) gives their voxels' size."""
        if not bool(torch.isfinite(volumes).all()):
            raise RuntimeError("Expected finite intensities, but got NaN or infinite voxels.")
        if self.resampled and affine is None:
            raise RuntimeError("Expected the scan's affine as second argument: this network resamples scans.")
        maps: list[Tensor] = []
        for number in range(volumes.shape[0]):
            steps = torch.ones(3, dtype=torch.float64)
            if affine is not None:
                matrices = affine.to(torch.device("cpu"), torch.float64).reshape(-1, 4, 4)
                columns = matrices[min(number, matrices.shape[0] - 1)][:3, :3]
                steps = (columns * columns).sum(0).sqrt()
            maps.append(self.segment(volumes[number].float(), steps))
        return torch.stack(maps).unsqueeze(1)

    def segment(self, volume: Tensor, steps: Tensor) -> Tensor:
        """Return the label map (X, Y, Z) of one scan (C, X, Y, Z) with voxels of this size."""
        native = volume.shape[1:]
        prepared = torch.stack([self.scaled(channel) for channel in volume])
        new: list[int] = []
        for side in range(3):
            new.append(native[side])
            if self.resampled:
                target = self.spacing[side] if self.spacing[side] > 0 else float(steps[side])
                new[side] = int(round(max(1.0, native[side] * float(steps[side]) / target)))  # noqa: RUF046  TorchScript's is a float
                scale = target / float(steps[side])
                if new[side] != native[side] or scale != 1.0:
                    offset = (native[side] - 1 - scale * (new[side] - 1)) / 2
                    prepared = self.stretched(prepared, side + 1, new[side], scale, offset)
        prepared = prepared.float()
        classes = self.classify(prepared.movedim(self.axis + 1, 0).contiguous()).movedim(0, self.axis)
        if self.resampled:
            for side in range(3):
                target = self.spacing[side] if self.spacing[side] > 0 else float(steps[side])
                scale = float(steps[side]) / target
                offset = (new[side] - 1 - scale * (native[side] - 1)) / 2
                places = (torch.arange(native[side], dtype=torch.float64) + offset / scale) * scale
                rows = (places + 0.5).floor().long().clamp(0, new[side] - 1)
                classes = classes.index_select(side, rows.to(classes.device))
        return self.values[classes.long()]

    def scaled(self, channel: Tensor) -> Tensor:
        """Clip and normalise one channel."""
        low, high = self.low, self.high
        if self.clip_quantile > 0:
            rank = max(0, math.ceil(self.clip_quantile * channel.numel() - 1))
            high = min(max(float(channel.flatten().kthvalue(rank + 1)[0]), low), high)
        clipped = channel.clamp(low, high)
        shift, scale = 0.0, 1.0
        if self.normalisation == "range" and self.windowed:
            shift, scale = low, high - low
        if self.normalisation == "min-max":
            shift, scale = float(clipped.min()), float(clipped.max() - clipped.min())
        if self.normalisation == "z-score":
            shift = float(clipped.double().mean())
            scale = float((clipped.double() - shift).square().mean().sqrt())
        # Tensors, as CUDA would multiply by the inverse of a number.
        shifts = torch.full([1], shift, dtype=torch.float32, device=channel.device)
        scales = torch.full([1], scale if scale != 0.0 else 1.0, dtype=torch.float32, device=channel.device)
        return (clipped - shifts) / scales

    def classify(self, slices: Tensor) -> Tensor:
        """Return the classes (P, H, W) of slices (P, C, H, W)."""
        height, width = slices.shape[2], slices.shape[3]
        rows = self.nearest(self.height, height).to(slices.device)
        columns = self.nearest(self.width, width).to(slices.device)
        batch = self.batch_cuda if slices.is_cuda else self.batch
        parts: list[Tensor] = []
        for start in range(0, slices.shape[0], batch):
            logits = self.network(self.resized(slices[start : start + batch]))
            if not bool(torch.isfinite(logits).all()):
                raise RuntimeError("Expected finite numbers from the network, but got NaN or infinity.")
            # Row and column 0 are background, for what SciPy's zoom fills.
            found = nn.functional.pad(logits.argmax(1).to(torch.int16), (1, 0, 1, 0))
            parts.append(found.index_select(1, rows).index_select(2, columns))
        return torch.cat(parts)

    # -- resizing slices, as `adawac.data.resample.warp` does with the identity ---------------------------------------

    def positions(self, old: int, new: int) -> Tensor:
        """Return where the pixels of a new side lie on the old one; the edges of both are the same."""
        centred = torch.arange(new, dtype=torch.float32) - (new - 1) / 2
        return torch.full([1], old, dtype=torch.float32) / new * centred + (old / 2 - 0.5)

    def nearest(self, old: int, new: int) -> Tensor:
        """Return the number of the old row, from 1, that each new row shows; 0 where it shows none."""
        if self.resize != "released":
            return (self.positions(old, new) + 0.5).clamp(0, max(old - 1, 0)).int() + 1
        places = self.zoomed(old, new)
        rows = (places + 0.5).floor().int().clamp(0, old - 1) + 1
        return torch.where(places > old - 1, torch.zeros_like(rows), rows)

    def zoomed(self, old: int, new: int) -> Tensor:
        """Return where `scipy.ndimage.zoom` reads: the centres of the corner pixels stay where they are."""
        return torch.arange(new, dtype=torch.float64) * (float(old - 1) / float(max(new - 1, 1)))

    def resized(self, slices: Tensor) -> Tensor:
        """Return slices (P, C, H, W) at the network's size."""
        device = slices.device
        if self.resize == "released":
            rows = self.zoom_matrix(slices.shape[2], self.height).to(device)
            columns = self.zoom_matrix(slices.shape[3], self.width).to(device)
            return rows @ slices @ columns.t()
        row_places, row_weights = self.taps(slices.shape[2], self.height)
        column_places, column_weights = self.taps(slices.shape[3], self.width)
        total = torch.zeros(0)
        for row in range(len(row_places)):
            picked = slices.index_select(2, row_places[row].to(device))
            part = torch.zeros(0)
            for column in range(len(column_places)):
                values = picked.index_select(3, column_places[column].to(device)) * column_weights[column].to(device)
                part = values if column == 0 else part + values
            part = part * row_weights[row].to(device).unsqueeze(1)
            total = part if row == 0 else total + part
        return total

    def taps(self, old: int, new: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return each new pixel's neighbours along one side, and their weights."""
        last = max(old - 1, 0)
        position = self.positions(old, new).clamp(0, last)
        below = position.floor()
        if self.resize == "bilinear":
            below = below.clamp(0, max(last - 1, 0))
            share = position - below
            first = below.int()
            return [first, first + (1 if last > 0 else 0)], [1 - share, share]
        t = position - below  # Keys' cubic, a = -1/2
        u = 1 - t
        weights = [-0.5 * t * u * u, 1 + t * t * (1.5 * t - 2.5), 1 + u * u * (1.5 * u - 2.5), -0.5 * u * t * t]
        places = [(below.int() + shift - 1).clamp(0, last) for shift in range(4)]
        return places, weights

    # -- SciPy's cubic splines ----------------------------------------------------------------------------------------

    def stretched(self, volume: Tensor, side: int, new: int, scale: float, offset: float) -> Tensor:
        """Resample one side as `scipy.ndimage.affine_transform(…, mode="nearest")` does, and stay in float64."""
        old, pad = volume.shape[side], 12
        places = (torch.arange(new, dtype=torch.float64) + offset / scale) * scale + pad
        edge = torch.eye(old, dtype=torch.float64)
        padded = torch.cat([edge[:1].expand(pad, old), edge, edge[-1:].expand(pad, old)])
        matrix = self.spline(places, old + 2 * pad, mirrored=False) @ padded
        moved = volume.double().movedim(side, -1) @ matrix.t().to(volume.device)
        return moved.movedim(-1, side)

    def zoom_matrix(self, old: int, new: int) -> Tensor:
        """Return the matrix (new, old) of `scipy.ndimage.zoom`, which leaves zeros where it reads past the end."""
        places = self.zoomed(old, new)
        matrix = self.spline(places.clamp(0, old - 1), old, mirrored=True)
        return (matrix * (places <= old - 1).unsqueeze(1)).float()

    def spline(self, places: Tensor, size: int, mirrored: bool) -> Tensor:
        """Return the matrix (places, size) of the cubic spline through `size` values, read at these places."""
        if size == 1:
            return torch.ones(places.shape[0], 1, dtype=torch.float64)
        band = torch.eye(size, dtype=torch.float64) * 4
        inner = torch.arange(size - 1)
        band[inner, inner + 1] = 1.0
        band[inner + 1, inner] = 1.0
        if mirrored:  # about the first and last value; else about the edges beyond them
            band[0, 1] = 2.0
            band[size - 1, size - 2] = 2.0
        else:
            band[0, 0] = 5.0
            band[size - 1, size - 1] = 5.0
        below = places.floor()
        t = places - below
        u = 1 - t
        weights = [u * u * u, 4 - 3 * t * t * (2 - t), 4 - 3 * u * u * (2 - u), t * t * t]
        read = torch.zeros(places.shape[0], size, dtype=torch.float64)
        for shift in range(4):
            column = (below.long() + shift - 1).abs()
            column = torch.where(column > size - 1, 2 * (size - 1) - column, column).abs()
            read.scatter_add_(1, column.unsqueeze(1), weights[shift].unsqueeze(1))
        matrix: Tensor = torch.linalg.solve(band, read, left=False)
        return matrix


def compile_program(trained: Trained) -> Any:
    """Return a network as a `VolumeProgram` in TorchScript, on the CPU.

    Raises:
        RunError: If the network cannot be traced, or if it then gives other logits.
    """
    ensemble = Predictor.of([trained], device="cpu").ensemble
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, len(trained.channels), *trained.image_size, generator=generator)
    try:
        with quietly(), torch.inference_mode():
            traced = torch.jit.trace(ensemble, images[:2], check_trace=False)
            difference = max(_difference(traced, ensemble, part) for part in (images, images[:1]))
            program = VolumeProgram(
                traced,
                trained.preprocessing,
                trained.image_size,
                trained.resize,
                [class_values[0] for class_values in trained.label_values],
            )
            script = torch.jit.script(program.eval())
    except (RuntimeError, TypeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(
            f"Expected a network that torch.jit can trace, but {trained.model.name!r} cannot be ({lines[-1].strip()}). "
            "Export a model folder instead."
        ) from error
    if not difference <= _TOLERANCE:
        raise RunError(
            f"Expected TorchScript to give torch's logits within {_TOLERANCE:g}, but they differ by {difference:.2g}. "
            "Export a model folder instead."
        )
    return script


_TOLERANCE = 1e-4


def _difference(traced: Any, network: nn.Module, images: Tensor) -> float:
    wanted = network(images)
    return float((traced(images) - wanted).abs().max() / wanted.abs().max().clamp_min(1.0))


def save_program(script: Any, path: Path) -> None:
    """Write a program without the sources of Python that TorchScript adds for its messages: their paths name people."""
    with beside(path) as temporary:
        with quietly():
            script.save(str(temporary))
        _drop_sources(temporary)


def _drop_sources(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = [
            (item, archive.read(item)) for item in archive.infolist() if not item.filename.endswith(".debug_pkl")
        ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for item, content in records:
            archive.writestr(item, content)
