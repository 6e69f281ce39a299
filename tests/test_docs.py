"""The documentation says what was measured."""

import json
import sys

from places import REPOSITORY


def test_pages_quote_the_measured_numbers():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import render

    for path in render.PAGES:
        page = path.read_text()
        assert render.rendered(page) == page, f"{path}: run `python benchmarks/render.py`"
        assert page.count("<!-- end -->") == page.count("<!--") / 2 >= 1


def test_gpu_results_are_those_of_the_source_there_is():
    """A part that was measured before a step changed has to be measured again: `make gpu-check`."""
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import gpu_check

    assert gpu_check.stale() == []


def test_only_what_a_step_does_makes_gpu_results_stale(tmp_path, monkeypatch):
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import gpu_check

    files = [tmp_path / "src/adawac" / name for name in gpu_check.STEP if name.endswith(".py")]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""What it does."""\n\ndef step(x):\n    """Return twice."""\n    return 2 * x\n')
    (tmp_path / "src/adawac/models/fused").mkdir()
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path)
    results = {"parts": {"ladder": {"source": gpu_check.source_hash(), "status": 0, "seconds": 1.0}}}
    (tmp_path / gpu_check.NAME).write_text(json.dumps(results))
    assert gpu_check.stale(tmp_path) == []
    files[0].write_text('"""In other\nwords."""\n# Note\ndef step(x):\n    return 2 * x  # doubled\n')
    assert gpu_check.stale(tmp_path) == []
    files[0].write_text("def step(x):\n    return 3 * x\n")
    assert gpu_check.stale(tmp_path) == ["ladder"]


def test_the_hash_covers_files_that_there_are():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    import gpu_check

    assert all((REPOSITORY / "src/adawac" / name).exists() for name in gpu_check.STEP)


def test_the_criterion_costs_at_most_one_and_a_half_plain_losses():
    result = json.loads((REPOSITORY / "benchmarks" / "results" / "criterion-cpu.json").read_text())
    assert result["against_plain"]["adawac, official"] <= 1.5
