"""The shape of the package: imports point one way, names load lazily, the algorithm stays short."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import adawac

SOURCE = Path(adawac.__file__).parent

# Each layer may import from those before it, and from its own.
LAYERS = [
    ["errors", "files", "lazy", "registry"],
    ["kernels"],
    ["losses", "distributed", "features", "checks", "objective"],
    ["algorithm"],
    ["methods"],
    ["theory"],
    ["config", "data", "metrics", "models", "runs"],
    ["inference"],
    ["train"],
    ["evaluation"],
    ["figures"],
    ["report", "viewer"],
    ["reproduction"],
    ["integrations"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
CORE = [name for layer in LAYERS[:5] for name in layer if name != "kernels"]


def part_of(path: Path) -> str:
    if path.parent.name == "kernels" and path.stem == "blocks":  # it knows the networks whose blocks it replaces
        return "inference"
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path, *, typing_too: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports, wherever it does so."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING" and not typing_too
        for statement in block.body
        for node in ast.walk(statement)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = HEIGHT[part_of(path)]
    for name in imported(path):
        if name.startswith("adawac."):
            part = name.split(".")[1]
            if part in HEIGHT:  # `from adawac import __version__` has no height
                assert HEIGHT[part] <= own, f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize("part", CORE)
def test_the_core_imports_torch_and_nothing_heavier(part):
    allowed = {"torch", "jaxtyping", "adawac", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imported(SOURCE / f"{part}.py")} <= allowed


def test_only_kernels_import_triton():
    users = [path for path in FILES if any(name.split(".")[0] == "triton" for name in imported(path))]
    assert {path.relative_to(SOURCE).parts[0] for path in users} == {"kernels"}


def test_no_file_is_called_utils():
    assert not [path for path in FILES if "util" in path.stem or "helper" in path.stem]


def test_the_algorithm_fits_on_a_few_screens():
    tree = ast.parse((SOURCE / "algorithm.py").read_text())
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = sum((ast.get_docstring(node) or "").count("\n") + 1 for node in documented)
    assert len((SOURCE / "algorithm.py").read_text().splitlines()) - docstrings < 130  # examples not counted


def test_importing_adawac_loads_nothing_and_its_names_no_more_than_torch():
    code = """
import json, sys
import adawac
first = sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'yaml'))
adawac.AdaWAC, adawac.EncoderTap, adawac.METHODS, adawac.build_method
heavy = ('torchvision', 'monai', 'lightning', 'lightning_fabric', 'timm', 'segmentation_models_pytorch', 'nibabel',
         'scipy', 'matplotlib', 'h5py', 'yaml', 'rich', 'cyclopts')
print(json.dumps([first, sorted(m for m in sys.modules if m in heavy)]))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, heavy = json.loads(out.stdout)
    assert first == []
    assert heavy == []


def test_every_public_name_can_be_had():
    for name in adawac.__all__:
        assert getattr(adawac, name) is not None
    assert set(adawac.__all__) <= set(dir(adawac))
    with pytest.raises(AttributeError, match="no attribute 'AdaWAK'"):
        _ = adawac.AdaWAK
