"""The scripts and the notebook in `examples/` run, as their users would run them, for one epoch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adawac
from tests.places import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
NOTEBOOK = EXAMPLES / "from-scan-to-report.ipynb"
LIBRARIES = {
    "with_accelerate": "accelerate",
    "with_lightning": "lightning",
    "with_monai_2d": "ignite",
    "with_monai_3d": "monai",
    "with_nnunet": "nnunetv2",
    "with_transformers": "transformers",
}
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
SLOW = {"with_nnunet"}
WEIGHTS = (r"(?:label-sparse|empty blocks) (\d\.\d+)", r"(?:label-dense|others) (\d\.\d+)")


def environment(tmp_path: Path) -> dict[str, str]:
    """What a script sees: this adawac, one thread, and temporary files that go away with the test's."""
    source = str(Path(adawac.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SCRIPTS]
)
def test_a_script_runs_and_shows_where_the_weights_went(name: str, tmp_path: Path) -> None:
    pytest.importorskip(LIBRARIES.get(name, "adawac"))
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "1"]
    script = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    weights = [float(weight) for pattern in WEIGHTS for weight in re.findall(pattern, script.stdout)[-1:]]
    assert len(weights) == 2, script.stdout
    assert all(0 < weight < 1 and weight != 0.5 for weight in weights)  # one epoch has moved them


def test_every_script_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`(\w+)\.py`\]\((\w+)\.py\)", table, re.MULTILINE) == [
        (name, name) for name in sorted(SCRIPTS, key=table.index)
    ]


# In a process of its own, since Jupyter's libraries warn of one another.
EXECUTE = """
import re, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
for cell in notebook.cells:
    cell.source = re.sub(r"^EPOCHS = \\d+$", "EPOCHS = 1", cell.source, flags=re.MULTILINE)
NotebookClient(notebook, timeout=None).execute()
nbformat.write(notebook, "executed.ipynb")
"""


def outputs_of(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK)]
    execution = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True)
    assert execution.returncode == 0, execution.stderr
    executed, committed = outputs_of(tmp_path / "executed.ipynb"), outputs_of(NOTEBOOK)
    assert [output["output_type"] for output in executed] == [output["output_type"] for output in committed]
    assert not [output["text"] for output in executed if output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in executed) == 4
    assert list(tmp_path.glob("adawac-notebook-*/report.html"))


def test_the_committed_notebook_is_what_its_cells_say() -> None:
    """It was run from top to bottom, and its output shows nothing of the machine that ran it."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output.get("name") != "stderr" for output in outputs_of(NOTEBOOK))
    assert not re.search(r"/(?:tmp|home|root|work|Users)/", text)
