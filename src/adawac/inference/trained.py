"""Trained networks from where they are kept: a run folder, one of its checkpoints, a model folder, or the Hub.

Nothing is connected to but for an address `hf://owner/name[@revision]`. Of a repository, only the description and the
weights are fetched, and nothing if it holds a file that could be code or a pickled object.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from adawac.data.cases import check_name
from adawac.errors import AdawacError, ConfigError, DataError, MissingFileError, RunError
from adawac.files import is_hub_address
from adawac.inference.trained_network import (
    CARD,
    WEIGHTS,
    Trained,
    build_network,
    check_harmless,
    file_digest,
    load_tensors,
    read_card,
    resize_of,
    to_device,
)
from adawac.lazy import library
from adawac.runs import Run, load_checkpoint
from adawac.runs.layout import INFO, read_json

log = logging.getLogger("adawac.hub")  # `adawac predict` holds back the warnings of adawac.inference until its end

ENSEMBLE = "ensemble.json"
"""Names the model folders that lie beside it, and that predict together."""

_ADDRESS = re.compile(r"hf:/{1,2}([^/@]+/[^/@]+)(?:@(.+))?")  # a path has lost one of the slashes
#: What no program takes for code or for pickled objects.
_HARMLESS = ("", ".json", ".safetensors", ".md", ".txt", ".yaml", ".yml", ".csv", ".cff", ".onnx", ".pdf")
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")


def read_ensemble(folder: Path) -> dict[str, Any]:
    """Return what the file of an ensemble's folder says."""
    return read_json(folder / ENSEMBLE, "Copy the folder again.")


def find_members(folder: Path | str | Run) -> Sequence[Path | str | Run]:
    """Return the model folders of an ensemble's folder; any other one, or a run, alone; one from the Hub, fetched."""
    if isinstance(folder, Run):
        return [folder]
    folder = local_folder(folder)
    if not (path := folder / ENSEMBLE).is_file():
        return [folder]
    names = read_ensemble(folder).get("members")
    try:
        if not isinstance(names, list) or not names:
            raise DataError(f"got {names!r}")
        return [path.parent / check_name(str(name), "model folder") for name in names]
    except DataError as error:
        raise RunError(
            f"Expected in {path} the names of model folders beside it, but {error}. Copy the folder again."
        ) from error


def load_trained(
    folder: Path | str | Run,
    checkpoint: str | None = None,
    device: torch.device | str = "cpu",
    trust_code: bool = False,
) -> Trained:
    """Return the network of a run, or of a model folder that `adawac export` wrote.

    Args:
        folder: The run folder, one of its checkpoints (`RUN/checkpoints/best.safetensors`), the model folder, or the
            address of one on the Hugging Face Hub, `hf://owner/name[@revision]`.
        checkpoint: `last`, `best` or another checkpoint, where a run folder is given; by default what its configuration
            selects.
        device: Where the network goes.
        trust_code: Also build networks that a model folder names by `package.module:factory`, or with options that
            open files: importing them runs code. (A run is your own: what it names is built in any case.)

    Returns:
        The network in evaluation mode, and what is needed to use it: classes, channels, preprocessing, input size.

    Examples:
        >>> import adawac
        >>> trained = adawac.load_trained("runs/adawac")
        >>> trained.class_names[:2], trained.image_size, trained.checkpoint
        (('background', 'aorta'), (32, 32), 'last')
        >>> with torch.no_grad():
        ...     trained.network(torch.zeros(1, 1, 32, 32)).shape
        torch.Size([1, 9, 32, 32])
    """
    if isinstance(folder, Run):
        return _from_run(folder, checkpoint, device)
    path = local_folder(folder)
    if path.suffix == ".safetensors" and path.parent.name == "checkpoints":
        return _from_run(Run(path.parents[1]), path.stem, device)
    if (path / INFO).is_file():
        return _from_run(Run(path), checkpoint, device)
    if path.suffix == ".onnx":
        raise MissingFileError(
            f"Expected a run or a model folder, but {path} is a network for other programs. Export a folder, "
            "adawac export RUN --out model, and give that; or the run itself."
        )
    if (path / ENSEMBLE).is_file():
        raise RunError(
            f"Expected a single network, but {path} is an ensemble, which only `adawac predict` takes as a whole. Give "
            f"one of its members, such as {find_members(path)[0]}."
        )
    if not ((path / CARD).is_file() or (path / WEIGHTS).is_file()):
        raise MissingFileError(
            f"Expected a run or a model folder, but {path} has neither run.json nor {CARD}. Give what `adawac train` "
            "or `adawac export` had as --out."
        )
    return _from_model(path, checkpoint, device, trust_code)


def _load(tensors: Mapping[str, torch.Tensor], where: str, device: torch.device | str, **facts: Any) -> Trained:
    """Build the network of these facts, which are those of `Trained`, and load its weights."""
    task = facts["task"]
    network = build_network(facts["model"], facts["faithful"], facts["image_size"], task.class_names, task.channels)
    load_tensors(network, tensors, where)
    return Trained(network=to_device(network, device).eval(), **facts)


def _from_run(run: Run, checkpoint: str | None, device: torch.device | str) -> Trained:
    run.require("config.yaml", "data.json", "checkpoints")
    config = run.config
    assert config is not None  # it was required
    name = run.checkpoint_name(checkpoint)
    return _load(
        _result(run.checkpoint(name, "torch").tensors),
        f"{run.folder}, checkpoint {name}",
        device,
        model=config.model,
        faithful=run.data.get("network", {}).get("faithful"),
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
    return _load(
        load_checkpoint(weights, "torch").tensors,
        str(weights),
        device,
        model=card.model,
        faithful=card.faithful,
        image_size=card.image_size,
        resize=card.resize,
        task=card.task,
        source=folder,
        checkpoint=card.checkpoint,
        temperature=card.temperature,
        temperature_tta=card.temperature_tta,
    )


# -- the Hugging Face Hub ---------------------------------------------------------------------------------------------


def local_folder(source: Path | str) -> Path:
    """Return a folder as it is, and that of an address `hf://owner/name[@revision]` after it was fetched.

    What was fetched before is kept in the cache of `huggingface_hub`, and taken from there without a connection.
    """
    if not is_hub_address(source):
        return Path(source)
    address = "hf://" + Path(source).as_posix().removeprefix("hf:").lstrip("/")
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise ConfigError(f"Expected hf://owner/name or hf://owner/name@revision, but got {str(source)!r}.")
    return _fetch(address, parts[1], parts[2])


def _fetch(address: str, name: str, revision: str | None) -> Path:
    hub, errors = (library(module, "adawac[hub]") for module in ("huggingface_hub", "huggingface_hub.errors"))
    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": [CARD, WEIGHTS]}
    try:
        with _explained(errors, address):
            commit = _check(hub.HfApi().model_info(name, revision=revision), address)
            folder = Path(hub.snapshot_download(name, **wanted))
    except ConnectionError as error:
        try:
            folder = Path(hub.snapshot_download(name, local_files_only=True, **wanted))
        except (errors.LocalEntryNotFoundError, ValueError):
            raise RunError(
                f"Expected to reach the Hub for {address}, but got: {error}. Check the connection; HF_HUB_OFFLINE and "
                "HF_ENDPOINT, if they are set, decide where it looks."
            ) from error
        log.warning("The Hub cannot be reached: %s is taken from the cache, as it was fetched last.", address)
        return folder
    if folder.name != commit:
        raise RunError(f"Expected {address} to stay as it is while it is fetched, but it was changed. Try again.")
    return folder


def _check(info: Any, address: str) -> str:
    """Return the commit of a repository, after a look at the names of its files."""
    names = [file.rfilename for file in info.siblings or ()]
    suspects = [name for name in names if PurePosixPath(name).suffix.lower() not in (*_HARMLESS, *_PICTURES)]
    if suspects:
        raise RunError(
            f"Expected a model folder of plain data in {address}, but it has files that may hold code or pickled "
            f"objects: {', '.join(suspects[:3])}. Nothing was fetched."
        )
    if missing := [name for name in (CARD, WEIGHTS) if name not in names]:
        raise MissingFileError(
            f"Expected a model folder in {address}, but it has no {missing[0]}. Upload what "
            "`adawac export RUN --hub FOLDER` writes."
        )
    return str(info.sha)


@contextmanager
def _explained(errors: Any, address: str) -> Iterator[None]:
    """Turn what the library raises into one message; without a connection, into `ConnectionError`."""
    try:
        yield
    except AdawacError:
        raise
    except errors.GatedRepoError as error:
        raise RunError(
            f"Expected access to {address}, but its owners ask for consent first. Give it on the Hub's page, and log "
            "in: hf auth login."
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = "revision" if isinstance(error, errors.RevisionNotFoundError) else "repository"
        raise MissingFileError(
            f"Expected {address} on the Hub, but there is no such {what}. Check the name; if it is private, log in: "
            "hf auth login."
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"Expected hf://owner/name[@revision], but got {address} ({_line(error)}).") from error
    except errors.HfHubHTTPError as error:
        raise RunError(
            f"Expected to fetch {address}, but the Hub answered: {_line(error)}. Try again later."
        ) from error
    except Exception as error:  # of the library's own client, whichever it is in this version
        if _is_connection(error):
            raise ConnectionError(_line(error)) from error
        raise


def _is_connection(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ConnectionError", "TransportError", "LocalEntryNotFoundError", "OfflineModeIsEnabled"})


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def source_name(folder: Path) -> str:
    """Return the name that a label map gives of a network: its folder's, or its address if it was fetched."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        name = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        return f"hf://{name}@{folder.name}"
    return folder.name
