"""The shape of the package: imports point one way, names are unique, the algorithm stays short."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import adawac

SOURCE = Path(adawac.__file__).parent

# Each layer may import from those before it, and from its own. A module that is named goes before its package.
LAYERS = [
    ["errors", "files", "lazy", "registry", "__version__"],
    ["config.values"],
    ["config.schema", "config.yaml_text", "config.objective_options"],
    ["kernels"],
    ["losses", "distributed", "features", "checks", "objective"],
    ["algorithm"],
    ["methods"],
    ["theory"],
    ["models"],
    ["kernels.blocks"],  # it knows the networks whose blocks it replaces
    ["config"],
    ["data", "metrics"],
    ["runs"],
    ["evaluation.statistics"],  # of scores in a run folder: what a shared network says of itself
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
CORE = [name for layer in LAYERS[:7] for name in layer if name not in ("kernels", "config.yaml_text", "__version__")]
# Words that end like a gerund but are the names of things.
GERUNDS = {
    "preprocessing": "what is done to a scan, as a record",
    "checkpointing": "the usual name of saving and restoring a training",
    "lightning": "a library",
}
SMALL = {
    "integrations.nnunet.trainers.adawac_nnunet_trainers": "nnU-Net imports it by its file's name",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imported(path: Path, *, typing_too: bool = False, functions_too: bool = True) -> frozenset[str]:
    """Absolute names of the modules that a file imports; of what is imported from a module, only modules are named."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_too:
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not functions_too:
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.update(home(str(node.module), alias.name) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(names)


@cache
def home(module: str, name: str) -> str:
    """The module that `from module import name` leads to, also through a package that imports names lazily."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    if module in MODULES and MODULES[module].stem == "__init__":
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
                return home(str(node.module), name)
    return f"{module}.{name}" if module == "adawac" else module


def height(module: str) -> int:
    """How high a module lies: as the longest of its names that the table has."""
    parts = module.split(".")[1:]
    return next(HEIGHT[name] for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in HEIGHT)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "adawac"])
def test_imports_point_one_way(module):
    exports = f"{module}." if MODULES[module].stem == "__init__" else "-"  # whoever uses an export imports its home
    for name in imported(MODULES[module]):
        if name.startswith("adawac.") and not name.startswith(exports):
            assert height(name) <= height(module), f"{module} imports {name}"


def test_no_module_imports_itself_through_others():
    graph = {
        name: {other for other in imported(path, functions_too=False) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


@pytest.mark.parametrize("part", CORE)
def test_the_core_imports_torch_and_nothing_heavier(part):
    needs_of_torch = {"filelock", "typing_extensions"}
    allowed = {"torch", "jaxtyping", "adawac", *needs_of_torch, *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imported(MODULES[f"adawac.{part}"])} <= allowed


def test_only_kernels_import_triton():
    importers = [name for name, path in MODULES.items() if "triton" in {part.split(".")[0] for part in imported(path)}]
    assert importers
    assert all(name.startswith("adawac.kernels.") for name in importers), importers


def test_no_module_name_stands_twice():
    counts = Counter(path.stem for path in MODULES.values() if path.stem not in ("__init__", "__main__"))
    assert not {name for name, count in counts.items() if count > 1}


def test_modules_are_called_after_what_they_hold():
    words = {name: path.stem.split("_") for name, path in MODULES.items()}
    assert not [name for name, parts in words.items() if any(w.startswith(("util", "helper")) for w in parts)]
    gerunds = {word for parts in words.values() for word in parts if word.endswith("ing")}
    assert gerunds <= set(GERUNDS), gerunds - set(GERUNDS)


def test_a_small_module_with_a_single_importer_gives_a_reason():
    importers: dict[str, set[str]] = {name: set() for name in MODULES}
    for name, path in MODULES.items():
        for module in imported(path, typing_too=True):
            importers.get(module, set()).add(name)
    small = {
        name.removeprefix("adawac.")
        for name, path in MODULES.items()
        if path.stem not in ("__init__", "__main__")
        and len(importers[name]) < 2
        and len(path.read_text(encoding="utf-8").splitlines()) < 80
    }
    assert small <= set(SMALL), small - set(SMALL)


def test_the_tree_stays_small():
    assert len(MODULES) <= 172


def test_no_class_name_stands_for_two_things():
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == {
        "RunFolder"
    }  # Lightning's callback and MONAI's handler


def test_a_training_step_runs_through_at_most_15_files(config, tmp_path):
    from adawac.runs.recorder import RunRecorder
    from adawac.train.setup import set_up
    from adawac.train.step import TrainStep

    trainer = set_up(config)
    recorder = RunRecorder(tmp_path / "run", trainer.criterion, samples=trainer.samples.table, config=config)
    step = TrainStep(trainer)
    batch = next(iter(step.inputs(1, 0)))
    files: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
    try:
        step(batch, 1, 0)
    finally:
        sys.setprofile(before)
        recorder.close()
    ours = {Path(file) for file in files if file.startswith(str(SOURCE))}
    assert {SOURCE / "algorithm.py", SOURCE / "runs" / "recorder.py"} <= ours
    assert len(ours) <= 15, sorted(ours)


def test_variables_are_not_called_one():
    pattern = re.compile(r"\bfor one in\b")
    counts = {name: len(pattern.findall(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}
    assert not {name: count for name, count in counts.items() if count}


def test_the_algorithm_fits_on_a_few_screens():
    tree = ast.parse((SOURCE / "algorithm.py").read_text())
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = sum((ast.get_docstring(node) or "").count("\n") + 1 for node in documented)
    assert len((SOURCE / "algorithm.py").read_text().splitlines()) - docstrings < 150  # examples not counted


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
