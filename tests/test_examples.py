"""The examples in docstrings run, and every public name has one and says what it takes and returns."""

import ast
import doctest
import importlib
import inspect
import itertools
import re
import shutil
from types import ModuleType

import pytest
import torch

import adawac
from adawac.config import DataConfig, HardwareConfig, ModelConfig, TrainConfig, save
from tests.places import REPOSITORY

SOURCE = REPOSITORY / "src" / "adawac"
PYTHON = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
SLOW = {"adawac.reproduction.crossvalidation"}  # it trains in processes of their own
MODULES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
    for name in (".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in PYTHON)
]
NAMES = [name for name in adawac.__all__ if not isinstance(getattr(adawac, name), ModuleType) and name != "__version__"]


@pytest.fixture(scope="module")
def prepared_folders(tmp_path_factory):
    """What the examples find in their working folder: scans, a store, a configuration and a run."""
    from adawac.data.phantom import phantom_source
    from adawac.data.phantom.phantom_files import write_nifti_layout

    folder = tmp_path_factory.mktemp("examples")
    write_nifti_layout(folder / "scans", num_patients=2, size=32, slices=(6, 6))
    shutil.copytree(folder / "scans" / "labelsTr", folder / "masks")
    adawac.prepare(phantom_source(8, size=32, slices=(6, 6)), dest=folder / "stores" / "phantom", workers=1)
    config = TrainConfig(
        epochs=2,
        data=DataConfig(store=folder / "stores" / "phantom", image_size=(32, 32), batch_size=15),
        model=ModelConfig(name="tests.networks.small_network:small"),
        hardware=HardwareConfig(accelerator="cpu"),
    )
    save(config, folder / "small.yaml")
    adawac.fit(config, folder / "runs" / "adawac")
    return folder


@pytest.fixture
def working_folder(prepared_folders, tmp_path, monkeypatch):
    """A copy of these folders, and networks that every process can import."""
    shutil.copytree(prepared_folders, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE.parent}:{REPOSITORY}")
    monkeypatch.setattr("adawac.evaluation.calibration._PIXELS", 20_000)


def examples_of_constants(module):
    """The examples in the texts below a module's constants, which Python itself does not keep."""
    for name, text in texts_of_constants(module).items():
        test = doctest.DocTestParser().get_doctest(text, {**vars(module)}, f"{module.__name__}.{name}", None, 0)
        if test.examples:
            yield test


def texts_of_constants(module):
    body = ast.parse(inspect.getsource(module)).body
    return {
        ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): inspect.cleandoc(
            text.value.value
        )
        for node, text in itertools.pairwise(body)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, working_folder):
    module = importlib.import_module(name)
    torch.manual_seed(0)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples] + [*examples_of_constants(module)]
    assert tests
    for test in tests:
        assert doctest.DocTestRunner().run(test).failed == 0


def documentation(name):
    """What help says of a public name, and of what it was called with."""
    value = getattr(adawac, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return inspect.getdoc(value)
    home = next(module for module, names in adawac._NAMES.items() if name in names.split())
    return texts_of_constants(importlib.import_module(f"adawac.{home}"))[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented(name):
    text, value = documentation(name), getattr(adawac, name)
    assert re.search(r"^Examples:\n    >>> ", text, re.MULTILINE), f"{name} has no example"
    if not callable(value):
        return
    for parameter in inspect.signature(value).parameters.values():
        settings = getattr(value, "__dataclass_fields__", {})  # each has a help text
        if parameter.name not in settings:
            assert re.search(rf"^    \*{{0,2}}{parameter.name}: \S", text, re.MULTILINE), f"{name}({parameter.name})"
    if inspect.isfunction(value):
        assert re.search(r"^Returns:\n    \S", text, re.MULTILINE), f"{name} does not say what it returns"
        assert re.search(r"^Args:\n    \S", text, re.MULTILINE)
