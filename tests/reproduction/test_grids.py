"""Grid files: those of the paper have its rows, columns and numbers; a wrong one is refused with one message."""

import os
import pickle
import re
from pathlib import Path

import pytest

from adawac.config.settings import recipe_names
from adawac.errors import ConfigError, MissingFileError, UnknownNameError
from adawac.methods import METHODS
from adawac.reproduction import grid_names, load_grid
from tests.documented_blocks import blocks_of
from tests.places import REPOSITORY
from tests.reproduction.grid_files import write_grid

TABLES = {
    1: "tab:synapse_sample_eff",
    2: "tab:trim",
    3: "tab:acdc",
    4: "tab:ablation",
    5: "tab:synapse_sample_eff_unet",
    6: "tab:synapse_sample_eff_prev",
    7: "tab:trim_prev",
    8: "tab:synapse_prev",
}
FIGURES = {1: "curves", 2: "overlays", 3: "weights", 4: "overlays", 5: "overlays"}
ORGANS = ["Aorta", "Gallbladder", "Kidney (L)", "Kidney (R)", "Liver", "Pancreas", "Spleen", "Stomach"]
SUBSETS = ["full", "half-slice", "half-vol", "half-sparse"]
METHODS_OF = {
    1: ["baseline", "AdaWAC"],
    2: ["baseline", "trim-train", "trim-train+ACR", "trim-ratio", "trim-ratio+ACR", "pseudo-AdaWAC", "AdaWAC"],
    3: ["TransUNet", "AdaWAC (ours)"],
    4: ["baseline", "reweight-only", "ACR-only", "AdaWAC-0.01", "AdaWAC-1.0"],
    5: ["baseline", "AdaWAC"],
    6: ["baseline", "AdaWAC"],
    7: ["baseline", "trim-train", "trim-ratio", "trim-train+ACR", "trim-ratio+ACR", "AdaWAC (ours)"],
    8: ["baseline", "reweight-only", "ACR-only", "AdaWAC-0.01", "AdaWAC-1.0"],
}


def test_every_table_and_figure_has_a_name():
    assert list(grid_names()) == [f"table-{n}" for n in TABLES] + [f"figure-{n}" for n in FIGURES]
    assert all(grid_names().values())


@pytest.mark.parametrize("number", TABLES)
def test_a_table_has_the_papers_rows_and_columns(number):
    name, grid = load_grid(f"table-{number}")
    assert name == f"table-{number}"
    assert f"Table {number} ({TABLES[number]})" in grid.source
    classes = {2: [], 3: ["RV", "Myo", "LV"]}.get(number, ORGANS)
    assert list(grid.columns) == ["DSC", "HD95", *classes]
    rows = grid.rows()
    assert [row.labels["method"] for row in rows] == METHODS_OF[number] * (4 if number in (1, 5, 6) else 1)
    if number in (1, 5, 6):
        assert [row.config.data.subset for row in rows] == [subset for subset in SUBSETS for _ in range(2)]
    for row in rows:
        printed = grid.printed(row)
        assert list(printed) == list(grid.columns)
        assert row.config.method.name in METHODS
        assert row.config.model.name == ("unet" if number == 5 else "transunet")
    assert grid.convention == ("transunet" if number > 5 else "adawac")
    assert len(grid.seeds) == (1 if number > 5 else 3)


def test_the_ablation_sets_the_step_size_of_each_preset():
    _, grid = load_grid("table-4")
    rows = grid.with_presets(("paper", "official")).rows()
    found = {(row.labels["preset"], row.labels["method"]): row.config for row in rows}
    eta = {key: config.method.options["eta_beta"] for key, config in found.items() if "AdaWAC" in key[1]}
    assert eta == {
        ("paper", "AdaWAC-0.01"): 0.01,
        ("paper", "AdaWAC-1.0"): 1.0,
        ("official", "AdaWAC-0.01"): 0.02,
        ("official", "AdaWAC-1.0"): 2.0,
    }
    assert found["official", "baseline"].forward == "separate"
    assert found["paper", "baseline"].forward == "joint"
    assert grid.printed(rows[0]) == grid.printed(rows[5])  # the paper does not tell the presets apart


def test_a_number_of_the_paper_equals_its_copy_with_and_without_a_spread():
    _, grid = load_grid("table-4")
    numbers = list(grid.printed(grid.rows()[0]).values())
    assert {number.std is None for number in numbers} == {True, False}
    assert pickle.loads(pickle.dumps(numbers)) == numbers


@pytest.mark.parametrize("number", FIGURES)
def test_a_figure_says_what_is_drawn(number):
    _, grid = load_grid(f"figure-{number}")
    assert [drawing.name for drawing in grid.drawings] == [FIGURES[number]]
    methods = [row.config.method.name for row in grid.rows()]
    assert methods == (["adawac"] if FIGURES[number] in ("curves", "weights") else ["adawac", "baseline"])


def paper_tex() -> str:
    repository = REPOSITORY
    folder = Path(os.environ.get("ADAWAC_PAPER", repository.parent / "shared" / "paper"))
    path = folder / "adawac.tex"
    if not path.is_file():
        pytest.skip("the paper's source is not here; set ADAWAC_PAPER to its folder")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", TABLES)
def test_the_numbers_are_those_of_the_paper(number):
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", paper_tex(), re.DOTALL)
    (table,) = [table for table in tables if f"\\label{{{TABLES[number]}}}" in table]
    body = table[table.index(r"\midrule") : table.index(r"\bottomrule")]
    # Names have digits, too: a cell is a number where it is nothing else.
    cells = [cell for line in body.split("\\\\") for cell in line.replace("\n", " ").split("&")]
    texts = [re.sub(r"\\best\{([^}]*)\}", r"\1", cell).replace(r"$\pm$", "±").split() for cell in cells]
    in_paper = [" ".join(text) for text in texts if re.fullmatch(r"[\d. ±]+", " ".join(text))]
    _, grid = load_grid(f"table-{number}")
    rows = [list(grid.printed(row).values()) for row in grid.rows()]
    ours = [
        cell for row in (zip(*rows, strict=True) if number == 2 else rows) for cell in row
    ]  # Table 2 lies on its side
    assert [
        f"{cell.mean:.2f} ± {cell.std:.2f}" if cell.std is not None else f"{cell.mean:.2f}" for cell in ours
    ] == in_paper
    assert len(ours) >= 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axis": {}}, "axis: unknown key. Near names: 'axes'"),
        ({"axes": {}}, "axes: expected what the runs differ in"),
        ({"axes": {"metod": ["baseline"]}}, "axes.metod: expected a setting, but got 'metod'. Near names: 'method'"),
        ({"axes": {"method": "baseline"}}, "axes.method: expected a list of values"),
        ({"axes": {"seed": [1, 1]}}, "axes.seed: expected each value once"),
        ({"seeds": []}, "seeds: expected at least one seed"),
        ({"seeds": [1, 1]}, "seeds: expected at least one seed, each once"),
        ({"columns": {}, "paper": {}}, "columns: expected what is measured"),
        ({"columns": {"DSC": {"metric": "dise"}}, "paper": {}}, "columns.DSC: expected {metric: dice or hd95"),
        ({"convention": "lax"}, "convention: expected one of strict, adawac"),
        ({"exceptions": [{"when": {}}]}, "exceptions.0: expected {when"),
        (
            {"exceptions": [{"when": {"metod": "adawac"}, "set": {}}]},
            "exceptions.0.when: expected an axis of the grid, but",
        ),
        (
            {"exceptions": [{"when": {"method": "AdaWAC"}, "set": {}}]},
            "exceptions.0.when.method: expected a name on that",
        ),
        ({"figures": ["weights"]}, "figures.0: expected {draw"),
        ({"paper": {"adawak": [1, 2, 3]}}, "but paper has 'adawak'"),
        ({"paper": {"adawac": [1, 2]}}, "Expected 3 numbers, one for each column, for 'adawac'"),
        ({"paper": {"adawac": [1, 2, "80 +- 1"]}}, "Write it like 76.66 ± 0.88"),
        ({"settings": {"epochs": 0}}, "epochs: expected a whole number ≥ 1"),
        ({"axes": {"subset": ["half"]}, "paper": {}}, "data.subset: expected one of full"),
        ({"settings": {"seed": 3}}, "seed, which the list of seeds in the grid's file decides"),
        ({"axes": {"seed": [1, 2]}, "paper": {}}, "seed, which the list of seeds in the grid's file decides"),
        ({"exceptions": [{"when": {}, "set": {"data": {"store": "x"}}}]}, "data.store, which the option --data"),
        ({"runs": {"a": {"set": {"epochs": 2}}}}, "axes: expected what the runs differ in"),
        ({"axes": {}, "runs": {"a": {"sett": {}}}, "paper": {}}, "runs.a: expected {set: {…}, seeds: […]"),
        ({"axes": {}, "runs": {"a": {"seeds": [1, 1]}}, "paper": {}}, "runs.a.seeds: expected a list of whole numbers"),
        ({"axes": {}, "runs": {"a": {"score": "train"}}, "paper": {}}, "runs.a.score: expected test or val"),
        ({"axes": {}, "runs": {"a": {"set": {"epoch": 2}}}, "paper": {}}, "Near names: 'epochs'"),
        ({"recipe": "synapse-unett"}, "Near names: 'synapse-unet'"),
        ({"recipe": {"official": "synapse-unet"}}, "Expected a recipe for the preset 'paper'"),
    ],
)
def test_a_wrong_grid_is_refused(tmp_path, changes, message):
    path = write_grid(tmp_path / "grid.yaml", **changes)
    with pytest.raises((ConfigError, MissingFileError)) as caught:
        load_grid(path)
    assert message in str(caught.value)


def test_what_is_no_grid_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Near names: .*'table-1'"):
        load_grid("tabel-1")
    with pytest.raises(MissingFileError, match="does not exist"):
        load_grid(tmp_path / "absent.yaml")
    (tmp_path / "broken.yaml").write_text("axes: [")
    with pytest.raises(ConfigError, match=r"Expected YAML in .*broken.yaml"):
        load_grid(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="expected settings"):
        load_grid(tmp_path / "list.yaml")


def test_axes_are_settings_options_or_names(tmp_path):
    axes = {
        "optim.lr": [0.1, 0.2],
        "method.options.eta_beta": [1.0],
        "size": {"small": {"epochs": 2}, "large": {"epochs": 4, "data.batch_size": 6}},
    }
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", axes=axes, paper={}))
    rows = grid.rows(last={"forward": "separate"})
    assert [row.labels for row in rows][:2] == [
        {"optim.lr": "0.1", "method.options.eta_beta": "1.0", "size": "small"},
        {"optim.lr": "0.1", "method.options.eta_beta": "1.0", "size": "large"},
    ]
    assert [(row.config.optim.lr, row.config.epochs, row.config.data.batch_size) for row in rows] == [
        (0.1, 2, 12),
        (0.1, 4, 6),
        (0.2, 2, 12),
        (0.2, 4, 6),
    ]
    assert all(row.config.method.options == {"eta_beta": 1.0} and row.config.forward == "separate" for row in rows)


def test_the_grids_of_the_documentation_can_be_read(tmp_path):
    axes, listed = (block.text for block in blocks_of("docs/how-to/reproduce.md") if block.language == "yaml")
    (tmp_path / "grid.yaml").write_text(axes, encoding="utf-8")
    _, grid = load_grid(tmp_path / "grid.yaml")
    rows = grid.rows()
    assert len(rows) == 2 * 2 * 3
    assert [row.config.epochs for row in rows if row.labels["method"] == "plain"] == [50, 50, 100, 100]
    (tmp_path / "grid.yaml").write_text(listed, encoding="utf-8")
    (tmp_path / "my-lists").mkdir()
    (tmp_path / "my-lists" / "train.txt").touch()
    _, grid = load_grid(tmp_path / "grid.yaml")
    base, candidate = grid.rows()
    assert (base.name, base.seeds, base.score) == ("baseline", (1, 2, 3), "test")
    assert (candidate.seeds, candidate.score, candidate.tta, candidate.priority) == ((1,), "val", True, 1)
    assert candidate.config.data.split == str(tmp_path / "my-lists")
    assert grid.conventions == ("strict",)
    assert grid.results == str(tmp_path / "results.json")


def test_null_takes_an_option_of_the_recipe_away(tmp_path):
    path = write_grid(tmp_path / "g.yaml", recipe="synapse-transunet", settings={"model.options": {"faithful": None}})
    _, grid = load_grid(path)
    assert grid.rows()[0].config.model.options == {}
    assert "synapse-transunet" in recipe_names()


def test_what_all_rows_share_may_be_changed_and_what_tells_them_apart_not(tmp_path):
    axes = {"size": {"small": {"model": {"name": "unet"}, "epochs": 2}, "large": {"epochs": 4}}, "optim.lr": [0.1, 0.2]}
    exceptions = [{"when": {"size": "large"}, "set": {"data.batch_size": 6}}]
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", axes=axes, exceptions=exceptions, paper={}))
    grid.check_changes({"optim": {"momentum": 0.5}, "model.options": {"x": 1}, "method.preset": "official"})
    for path in ("model.name", "epochs", "optim.lr", "data.batch_size"):
        with pytest.raises(ConfigError, match=f"all rows share .* got {path}, which .* Leave it out, or write a grid"):
            grid.check_changes({"forward": "joint", path: 1})
    recipe = {"paper": "synapse-unet", "official": "synapse-unet-official"}
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", recipe=recipe))  # the other preset has another recipe
    with pytest.raises(ConfigError, match=r"method.preset, which the recipe of each preset .* choose with --preset"):
        grid.check_changes({"method.preset": "official"})


def test_presets_are_chosen_where_the_grid_has_them(tmp_path):
    axes = {"method": ["adawac"], "preset": ["paper", "official"]}
    paper = {"adawac": {"paper": [1, 2, 3], "official": [4, 5, 6]}}
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", axes=axes, paper=paper))
    (row,) = grid.with_presets(("official",)).rows()
    assert list(row.labels) == ["method", "preset"]
    assert [number.mean for number in grid.printed(row).values()] == [4, 5, 6]
    by_name = {"kind": {"text": {"method.preset": "paper"}, "code": {"method.preset": "official"}}}
    _, grid = load_grid(write_grid(tmp_path / "grid.yaml", axes=by_name, paper={}))
    with pytest.raises(ConfigError, match=r"the axis kind sets it\. Leave --preset out"):
        grid.with_presets(("official",))
