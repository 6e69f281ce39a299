"""Figures of a grid, drawn from example runs: files, the mark of quick ones, and runs that are not done."""

import numpy as np
import pytest
from PIL import Image

from adawac.reproduction import load_grid
from adawac.reproduction.grid_data import MARK
from adawac.reproduction.jobs import make_jobs
from adawac.reproduction.reproduction import draw_figures
from adawac.runs import example_run, write_scores
from tests.reproduction.grid_files import write_grid


@pytest.fixture
def planned(tmp_path, small_store):
    """A grid with two figures, of one run that is done."""
    figures = [{"draw": "weights"}, {"draw": "curves", "options": {"scale": "linear"}}]
    path = write_grid(tmp_path / "grid.yaml", axes={"method": ["adawac"]}, figures=figures, paper={})
    name, grid = load_grid(path)
    rows = make_jobs(grid.rows(), small_store, tmp_path / "out", grid.conventions)
    return name, grid, rows


def test_figures_are_drawn_and_quick_ones_marked(planned, tmp_path):
    name, grid, rows = planned
    (job,) = rows[0][1]
    assert draw_figures(name, grid, rows, tmp_path) == []  # nothing has run
    example_run(job.folder)
    write_scores(job.folder, job.evaluation, [])
    plain = draw_figures(name, grid, rows, tmp_path)
    quick = draw_figures(name, grid, rows, tmp_path, MARK)
    assert [path.name for path in plain] == [f"grid-{n}.{ending}" for n in (1, 2) for ending in ("png", "pdf")]
    assert [path.name for path in quick] == [f"grid-quick-{n}.{ending}" for n in (1, 2) for ending in ("png", "pdf")]
    for path, other in zip(plain[::2], quick[::2], strict=True):
        with Image.open(path) as first, Image.open(other) as second:
            assert MARK not in first.info["Description"]
            assert second.info["Description"].startswith(MARK)
            assert second.info["Title"].endswith("(quick)")
            assert first.size == second.size
            changed = np.any(np.asarray(first) != np.asarray(second), axis=-1)
            assert changed.mean() > 0.005  # the mark can be seen
    with Image.open(draw_figures(name, grid, rows, tmp_path, mark="PHANTOM: drawn scans.")[0]) as other:
        assert other.info["Description"].startswith("PHANTOM: drawn scans.")
        assert other.info["Title"].endswith("(phantom)")


def test_presets_have_figures_of_their_own(planned, tmp_path, small_store):
    """What shows one run, such as the weights, cannot show two presets."""
    name, grid, _ = planned
    grid = grid.with_presets(("paper", "official"))
    rows = make_jobs(grid.rows(), small_store, tmp_path / "out", grid.conventions)
    drawn = []
    for preset, (_, (job,)) in zip(("paper", "official"), rows, strict=True):
        example_run(job.folder)
        write_scores(job.folder, job.evaluation, [])
        drawn += [f"grid-{preset}-{n}.{ending}" for n in (1, 2) for ending in ("png", "pdf")]
        assert [path.name for path in draw_figures(name, grid, rows, tmp_path)] == drawn
