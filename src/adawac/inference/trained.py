"""Trained networks from where they are kept: a run folder, one of its checkpoints, or a model folder."""

from collections.abc import Mapping
from pathlib import Path

import torch

from adawac.errors import MissingFileError, RunError
from adawac.inference.model_card import CARD, WEIGHTS, file_digest, read_card
from adawac.inference.trained_network import Trained, build_network, check_harmless, load_tensors, resize_of
from adawac.runs import Run, load_checkpoint


def load_trained(
    folder: Path | str | Run,
    checkpoint: str | None = None,
    device: torch.device | str = "cpu",
    trust_code: bool = False,
) -> Trained:
    """Return the network of a run, or of a model folder that `adawac export` wrote.

    Args:
        folder: The run folder, one of its checkpoints (`RUN/checkpoints/best.safetensors`), or the model folder.
        checkpoint: `last`, `best` or another checkpoint, where a run folder is given; by default what its configuration
            selects.
        device: Where the network goes.
        trust_code: Also build networks that a model folder names by `package.module:factory`, or with options that
            open files: importing them runs code. (A run is your own: what it names is built in any case.)
    """
    if isinstance(folder, Run):
        return _from_run(folder, checkpoint, device)
    path = Path(folder)
    if path.suffix == ".safetensors" and path.parent.name == "checkpoints":
        return _from_run(Run(path.parents[1]), path.stem, device)
    if (path / "run.json").is_file():
        return _from_run(Run(path), checkpoint, device)
    if path.suffix == ".onnx":
        raise MissingFileError(
            f"Expected a run or a model folder, but {path} is a network for other programs. Export a folder, "
            "adawac export RUN --out model, and give that; or the run itself."
        )
    if not ((path / CARD).is_file() or (path / WEIGHTS).is_file()):
        raise MissingFileError(
            f"Expected a run or a model folder, but {path} has neither run.json nor {CARD}. Give what `adawac train` "
            "or `adawac export` had as --out."
        )
    return _from_model(path, checkpoint, device, trust_code)


def _from_run(run: Run, checkpoint: str | None, device: torch.device | str) -> Trained:
    run.require("config.yaml", "data.json", "checkpoints")
    config = run.config
    assert config is not None  # it was required
    name = run.checkpoint_name(checkpoint)
    faithful = run.data.get("network", {}).get("faithful")
    network = build_network(config.model, faithful, config.data.image_size, run.task.class_names, run.task.channels)
    saved = run.checkpoint(name, "torch").tensors
    load_tensors(network, _result(saved), f"{run.folder}, checkpoint {name}")
    return Trained(
        network=network.to(device).eval(),
        model=config.model,
        faithful=faithful,
        image_size=config.data.image_size,
        resize=resize_of(config.data.views),
        task=run.task,
        source=run.folder,
        checkpoint=name,
    )


def _result(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the averaged weights where there are some, else those that training moved."""
    for prefix in ("averaged.module.", "network."):
        weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if weights:
            break
    return weights


def _from_model(folder: Path, checkpoint: str | None, device: torch.device | str, trust_code: bool) -> Trained:
    card, digest = read_card(folder)
    if checkpoint not in (None, card.checkpoint):
        raise RunError(
            f"Expected the checkpoint {card.checkpoint!r}, the only one in {folder}, but got {checkpoint!r}. Leave it "
            "out, or export that one."
        )
    if not trust_code:
        check_harmless(card.model, str(folder / CARD))
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise MissingFileError(f"Expected {WEIGHTS} beside {CARD}, but {weights} is missing. Copy the folder again.")
    if file_digest(weights) != digest:
        raise RunError(
            f"Expected {weights} as it was exported, but it was changed: it does not have the SHA-256 that {CARD} "
            "names. Copy the folder again, or export it again."
        )
    network = build_network(card.model, card.faithful, card.image_size, card.class_names, card.channels)
    load_tensors(network, load_checkpoint(weights, "torch").tensors, str(weights))
    return Trained(
        network=network.to(device).eval(),
        model=card.model,
        faithful=card.faithful,
        image_size=card.image_size,
        resize=card.resize,
        task=card.task,
        source=folder,
        checkpoint=card.checkpoint,
    )
