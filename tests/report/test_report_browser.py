"""The report as readers meet it: in Chromium, from a file, with the network off."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adawac.figures.style import gradient_colours
from adawac.report import write_report
from adawac.runs import FIELDS, Run, RunWriter, example_run, write_scores
from tests.browser import WatchedPage, chromium

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>\"'",
    "line\nbreak\u2028more",
    "\u202eright to left\u200f",
    "=HYPERLINK(1)",
    "x" * 400,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(["--headless", "--disable-gpu"]) as opened:
        yield opened


def make_run(folder: Path, suspect: int, **options: Any) -> Path:
    """An example run in which one empty sample has a high CE in all epochs."""
    run = example_run(folder, **options)
    fields = {name: run.history[name] for name in FIELDS}
    fields["ell_ce"][:, suspect] = 3.0
    (folder / "history.bin").unlink()
    with RunWriter(folder, resume=True) as writer:
        for index, epoch in enumerate(range(1, run.epoch + 1)):
            rows = np.arange(len(run.samples))
            writer.log_history(epoch, rows, **{name: values[index] for name, values in fields.items()})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of two whole runs, of one with hostile names, and of one that was interrupted."""
    root = tmp_path_factory.mktemp("browser")
    runs = [make_run(root / name, 5, method=name, slices=12) for name in ("baseline", "adawac")]
    write_report(runs, root / "report.html")
    write_report(make_run(root / "hostile", 24, cases=HOSTILE, slices=6, epochs=3), root / "hostile.html")
    write_report(example_run(root / "stopped", slices=6, epochs=4, status="interrupted"), root / "stopped.html")
    return root


def write_history(folder: Path, fields: dict[str, np.ndarray]) -> Path:
    """Give a run another history, and its means as losses."""
    with RunWriter(folder, resume=True) as writer:
        writer.rewind(0)
        for index in range(len(fields["beta"])):
            values = {name: series[index] for name, series in fields.items()}
            writer.log_history(index + 1, np.arange(fields["beta"].shape[1]), **values)
            loss = float(values["ell_ce"].mean())
            writer.log_metrics(index + 1, {"loss": loss, "ell_ce": loss, "reg_ac": float(values["reg_ac"].mean())})
    return folder


@pytest.fixture(scope="module")
def rushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs with long names: in one, losses fall by decades, and all samples go to consistency at once."""
    root = tmp_path_factory.mktemp("rushed")
    runs = [example_run(root / f"unet-of-a-long-name-number-{index}", seed=index, slices=40) for index in range(4)]
    for run in runs:
        scores = [replace(score, convention="other") for score in run.scores("test-strict")]
        with RunWriter(run.folder, resume=True) as writer:
            writer.write_scores("test-other", scores)
    samples, rng = len(runs[1].samples), np.random.default_rng(0)
    fall = np.concatenate([np.geomspace(10, 0.001, 19), [0]])[:, None]
    fields = {name: np.repeat(fall, samples, axis=1) for name in ("ell_ce", "reg_ac")}
    start = rng.uniform(0, 0.04, samples)
    fields["beta"] = np.linspace(start, start + 0.001, 20)
    fields["reg_ac"][:19] *= 0.5
    write_history(runs[1].folder, fields)
    write_report([run.folder for run in runs], root / "report.html")
    return root / "report.html"


class Reader(WatchedPage):
    """A report, opened offline."""

    def __init__(self, browser: Any, path: Path, **options: Any):
        super().__init__(browser, path.as_uri(), (1200, 900), offline=True, **options)

    def heatmap(self) -> dict[str, float]:
        self.page.evaluate("document.getElementById('heatmap').scrollIntoView({block: 'center', behavior: 'instant'})")
        return self.page.locator("#heatmap").bounding_box()

    def cell(self, row: float, column: float) -> tuple[float, float]:
        """Where on the page a cell lies, given as shares of the map; the gutter of the names is no part of it."""
        box = self.heatmap()
        gutter = 132 if box["width"] >= 560 else 62
        return box["x"] + gutter + (box["width"] - gutter) * column, box["y"] + box["height"] * row


@pytest.fixture
def reader(browser: Any, folder: Path) -> Iterator[Reader]:
    opened = Reader(browser, folder / "report.html")
    yield opened
    complaints = opened.complaints
    opened.context.close()
    assert complaints == []


def test_it_loads_offline_with_everything_in_it(reader: Reader):
    page = reader.page
    assert page.title().startswith("baseline, adawac")
    assert page.locator("h1").inner_text() == "Where β sent your data"
    assert "36 slices of 3 cases; 18 of them (50\u00a0%)" in page.locator("#overview").inner_text()
    scores = page.locator("#scores table").first
    assert scores.locator("tbody tr").count() == 3
    assert page.locator("#curves svg[role=img]").count() >= 4
    assert page.locator("#pictures li").count() == 6
    assert "adawac train --config adawac/config.yaml" in page.locator("#repeat").inner_text()
    assert "adawac report baseline adawac --out report.html" in page.locator("#repeat").inner_text()


def test_four_runs_and_their_differences_fit_beside_each_other(browser: Any, rushed: Path):
    opened = Reader(browser, rushed, viewport={"width": 1400, "height": 900})
    tables = opened.page.locator("#scores .scroll")
    assert tables.count() == 2  # two conventions, the same numbers: one table a metric
    assert "conventions other and strict, which agree here" in tables.first.inner_text()
    assert "differences to unet-of-a-long-name-number-0" in tables.first.inner_text()
    for table in tables.all():
        assert table.evaluate("box => box.scrollWidth <= box.clientWidth")
    rows = json.loads(opened.page.locator("#data").text_content())["scores"][0]["rows"]
    cells = tables.first.locator("tbody tr").first.locator("td")
    assert cells.count() == 4
    assert cells.first.locator(".difference").count() == 0
    for index, difference in enumerate(rows[0]["differences"], start=1):
        text = cells.nth(index).inner_text().replace("−", "-")
        assert f"{100 * difference['mean']:+.2f}" in text
        assert f"{100 * difference['low']:.2f} to {100 * difference['high']:.2f}" in text
        assert "p = " in text
    opened.context.close()


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of five runs, the last two of another data set, with patients of the same names and fewer slices."""
    root = tmp_path_factory.mktemp("five")
    runs = [
        example_run(root / f"unet-of-a-long-name-{index}", slices=8 if index < 5 else 6, epochs=3).folder
        for index in range(7)
    ]
    for run in runs[5:]:
        path = run / "data.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "dataset": "elsewhere"}))
    write_report(runs, root / "report.html")
    return root / "report.html"


def test_five_runs_are_all_in_sight(browser: Any, five: Path):
    opened = Reader(browser, five, viewport={"width": 1400, "height": 900})
    first = opened.page.locator("#scores .scroll").first
    assert first.locator("thead th").count() == 6
    assert first.evaluate("box => box.scrollWidth <= box.clientWidth")
    shapes = opened.page.locator("#overview svg.key path:last-child").evaluate_all(
        "all => all.map((one) => one.getAttribute('d'))"
    )
    assert len(set(shapes[:6])) == 6  # colours alone do not tell them apart
    opened.context.close()


def test_three_runs_stand_beside_each_other(browser: Any, five: Path):
    opened = Reader(browser, five)
    tops = opened.page.locator("#overview .card").evaluate_all("all => all.map((card) => card.offsetTop)")
    assert tops[0] == tops[1] == tops[2] < tops[3]
    opened.context.close()


def test_data_sets_are_told_apart(browser: Any, five: Path):
    opened = Reader(browser, five)
    page = opened.page
    assert "tested on several data sets (example, elsewhere)" in page.locator("#scores").inner_text()
    tables = page.locator("#scores .score")
    assert [tables.nth(index).locator(".chip").first.inner_text() for index in range(4)] == ["example"] * 2 + [
        "elsewhere"
    ] * 2
    assert "differences to unet-of-a-long-name-5" in tables.nth(2).locator("caption").inner_text()
    lead = page.locator("#overview .lead").inner_text()
    assert lead.startswith(
        "These runs were not trained on the same slices: 18 to 24 slices of 3 cases; 9 to 12 of them"
    )
    opened.context.close()


def heights(page: Any, title: str) -> dict[str, float]:
    """The labels of a chart's vertical axis, and where they are."""
    chart = page.locator("#curves figure", has=page.get_by_role("heading", name=title, exact=True))
    texts = chart.locator("svg[role=img] text[text-anchor=end]").all()
    return {text.text_content(): float(text.get_attribute("y")) for text in texts}


def test_losses_have_a_logarithmic_axis_and_weights_a_linear_one(browser: Any, rushed: Path):
    opened = Reader(browser, rushed)
    page = opened.page
    ticks = heights(page, "Loss")
    decades = [ticks[tick] for tick in ("10", "1", "0.1", "0.01", "0.001")]
    assert np.ptp(np.diff(decades)) < 1e-6  # every power of ten is as high as the next
    assert list(heights(page, "β")) == ["0", "0.5", "1"]
    panel = page.locator("#curves figure", has=page.get_by_role("heading", name="Loss", exact=True))
    assert panel.locator("figcaption").inner_text() == "logarithmic; zeros are not drawn"
    assert panel.locator("svg[role=img]").get_attribute("aria-label").startswith("Loss, logarithmic. ")
    assert "unet-of-a-long-name-number-1, loss: 10 at epoch 1, 0 at epoch 20" in page.locator(
        "#curves svg[role=img]"
    ).first.get_attribute("aria-label")
    paths = page.locator("#curves path").evaluate_all("paths => paths.map((one) => one.getAttribute('d'))")
    assert not [path for path in paths if "NaN" in path or "Infinity" in path]
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.3, 0.31], ["0.2", "0.5"]),
        ([0.5, 0.5], ["0.5", "1"]),
        ([4, 0.025], ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"]),
        ([1e-5, 30], ["1.0e−4", "0.01", "1"]),  # many decades: every second one
        ([1e-9, 30], ["20", "50"]),  # less than a hundred-millionth counts as zero
        ([0, 0], ["0"]),
        ([-2, 2], ["−2", "−1", "0", "1", "2"]),  # what has no logarithm is drawn as it is
    ],
)
def test_axes_of_odd_losses(browser: Any, tmp_path: Path, values: list[float], ticks: list[str]):
    run = example_run(tmp_path / "run", slices=4, epochs=2)
    fields = {name: np.full((2, 12), 0.5) for name in ("ell_ce", "reg_ac", "beta")}
    fields["ell_ce"][:] = np.array(values)[:, None]
    write_report(write_history(run.folder, fields), tmp_path / "report.html")
    opened = Reader(browser, tmp_path / "report.html")
    assert list(heights(opened.page, "Loss"))[: len(ticks)] == ticks
    assert opened.complaints == []
    opened.context.close()


def test_a_single_value_between_zeros_is_a_dot(browser: Any, tmp_path: Path):
    run = example_run(tmp_path / "run", slices=4, epochs=5)
    fields = {name: np.full((5, 12), 0.5) for name in ("ell_ce", "reg_ac", "beta")}
    fields["reg_ac"][[0, 2, 4]] = 0
    write_report(write_history(run.folder, fields), tmp_path / "report.html")
    opened = Reader(browser, tmp_path / "report.html")
    opened.page.locator("#heatmap").focus()
    opened.page.keyboard.press("Enter")
    last = opened.page.locator("dialog[open] figure").last
    assert last.locator("figcaption").inner_text() == "logarithmic; zeros are not drawn"
    path = last.locator("path.series").get_attribute("d")
    assert path.count("M") == path.count("h0") == 2
    box = last.locator("path.series").evaluate("one => { const { x, width } = one.getBBox(); return [x, width]; }")
    assert box[1] > 0
    opened.context.close()


def test_a_run_that_was_decided_at_once_says_so_and_accuses_nobody(browser: Any, rushed: Path):
    opened = Reader(browser, rushed)
    cards = opened.page.locator("#overview .card")
    assert "most was decided at the start" in cards.nth(1).inner_text()
    assert "decided" not in cards.nth(0).inner_text()
    [note] = opened.page.locator("#suspects .note").all_inner_texts()
    assert note.startswith("unet-of-a-long-name-number-1: β sent")
    assert "method.hold_epochs=3" in note
    assert "sent it to consistency" not in opened.page.locator("#suspects-body").inner_text()
    opened.context.close()


def test_hover_names_the_cell(reader: Reader, folder: Path):
    run = Run(folder / "adawac")
    row, epoch = 30, 4
    reader.page.mouse.move(*reader.cell((row + 0.5) / 36, (epoch + 0.5) / 20))
    tip = reader.page.locator(".tip")
    tip.wait_for()
    text = tip.inner_text()
    share = 1 - run.samples.fraction[row, 0]
    assert f"case03 · slice 6 · foreground {100 * share:.2f}\u00a0%" in text
    assert "epoch 5" in text
    for name, field in (("β", "beta"), ("CE", "ell_ce"), ("ACR", "reg_ac")):
        shown = float(text.split(f"{name} ")[-1].split(" ")[0])
        assert shown == pytest.approx(float(run.history[field][epoch, row]), rel=6e-3)
    reader.page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_the_map_shows_beta_in_its_colours(reader: Reader, folder: Path):
    beta = Run(folder / "adawac").history["beta"]
    code = """(places) => { const canvas = document.querySelector('#heatmap canvas');
        const box = canvas.getBoundingClientRect();
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return places.map(([x, y]) => {
            const at = Math.floor((y - box.top) * canvas.height / box.height) * canvas.width
                + Math.floor((x - box.left) * canvas.width / box.width);
            return [...data.slice(4 * at, 4 * at + 3)]; }); }"""
    cells = [(2, 18), (10, 10), (22, 18), (35, 3)]
    places = [list(reader.cell((row + 0.5) / 36, (epoch + 0.5) / 20)) for row, epoch in cells]
    for (row, epoch), shown in zip(cells, reader.page.evaluate(code, places), strict=True):
        expected = gradient_colours("diverging")[round(float(beta[epoch, row]) * 255)]
        assert shown == pytest.approx(expected, abs=6)


def test_a_click_opens_the_slice_with_its_layers(reader: Reader):
    page = reader.page
    page.mouse.click(*reader.cell(5.5 / 36, 0.5))
    dialog = page.locator("dialog[open]")
    dialog.wait_for()
    assert "case01 · slice 5" in dialog.inner_text()
    assert dialog.locator(".stack img").count() == 3
    assert dialog.locator(".trajectories svg[role=img]").count() == 3
    assert "foreground\nnone" in dialog.inner_text()
    dialog.get_by_label("Label (outline)").uncheck()
    assert dialog.locator(".stack img.outline").count() == 0
    dialog.get_by_label("Prediction (area)").uncheck()
    assert dialog.locator(".stack img").count() == 1
    size = dialog.locator(".stack img.scan").evaluate("image => image.decode().then(() => image.naturalWidth)")
    assert size == 64
    dialog.get_by_role("button", name="Next slice").click()
    expect(dialog.locator("#slice-title")).to_contain_text("slice 6")
    assert "There is no picture of this slice" in dialog.inner_text()
    dialog.get_by_role("button", name="Close").click()
    assert page.locator("dialog[open]").count() == 0


def test_the_keyboard_alone_reaches_a_slice(reader: Reader):
    page = reader.page
    page.locator("#heatmap").focus()
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Shift+ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#live")).to_contain_text("slice 11")
    said = page.locator("#live").text_content()
    assert said.startswith("case01 · slice 11 · foreground")
    assert "epoch 2 · β" in said
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    assert "case01 · slice 11" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    expect(page.locator("#heatmap")).to_be_focused()


def test_sorting_fields_zoom_and_runs(reader: Reader):
    page = reader.page
    page.select_option("#atlas-sort", "foreground")
    page.locator("#heatmap").focus()
    page.keyboard.press("Control+Home")
    densest = page.locator("#readout").inner_text()
    assert "slice 11" in densest
    page.keyboard.press("Control+End")
    assert "foreground none" in page.locator("#readout").inner_text()
    page.select_option("#atlas-sort", "disagreement")
    page.locator("label", has=page.locator("input[value=disagreement]")).click()
    expect(page.locator("#colours")).to_contain_text("contradicts")
    page.get_by_role("button", name="Show samples larger").click()
    page.get_by_role("button", name="Show samples larger").click()
    page.select_option("#atlas-run", "0")
    expect(page.locator("#atlas-place")).to_contain_text("This run recorded no β")
    assert page.locator("input[value=beta]").is_disabled()
    assert page.locator("input[value=ell_ce]").is_checked()


def test_zoomed_in_the_map_scrolls_and_still_knows_its_cells(reader: Reader):
    page = reader.page
    for _ in range(4):
        page.locator("#zoom-in").click()
    assert page.locator("#zoom-in").is_disabled()
    page.evaluate("document.getElementById('heatmap').scrollTop = 1e6")
    page.wait_for_timeout(50)
    x, y = reader.cell(0.99, 0.5)
    page.mouse.move(x, y)
    page.locator(".tip").wait_for()
    assert "case03 · slice 11" in page.locator(".tip").inner_text()


def downloaded(page: Any, folder: Path) -> list[dict[str, str]]:
    with page.expect_download() as download:
        page.locator("#suspects-csv").click()
    assert download.value.suggested_filename == "suspects.csv"
    download.value.save_as(folder / "suspects.csv")
    with (folder / "suspects.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_suspects_lead_to_the_atlas_and_into_a_file(reader: Reader, tmp_path: Path):
    page = reader.page
    row = page.locator("#suspects tbody tr").first
    assert "empty, but with a high cross-entropy" in row.inner_text()
    assert "baseline, adawac" in row.inner_text()
    row.get_by_role("button", name="show in atlas").click()
    expect(page.locator("#heatmap")).to_be_focused()
    expect(page.locator("#readout")).to_contain_text("case01 · slice 5")
    [first, *_] = downloaded(page, tmp_path)
    assert (first["case"], first["slice"], first["kind"]) == ("case01", "5", "empty-high-ce")
    row.get_by_role("button", name="case01").click()
    page.locator("dialog[open]").wait_for()


def test_hostile_names_are_text_and_run_nothing(browser: Any, folder: Path, tmp_path: Path):
    opened = Reader(browser, folder / "hostile.html", viewport={"width": 360, "height": 700})
    page = opened.page
    text = page.locator("body").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img:not([src^=\"data:image/png\"])').length") == 0
    assert "<img src=x onerror='window.hacked = 1'>\"'" in text
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    [row] = downloaded(page, tmp_path)
    assert row["case"] == "'=HYPERLINK(1)"  # text to a spreadsheet too
    page.locator("#heatmap").focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    assert page.evaluate("window.hacked") is None
    assert opened.complaints == []
    opened.context.close()


def test_the_policy_stops_a_script_that_gets_in(reader: Reader):
    code = (
        "const one = document.createElement('script'); one.textContent = 'window.hacked = 1'; document.body.append(one)"
    )
    reader.page.evaluate(code)
    assert reader.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in reader.complaints)
    reader.complaints.clear()


def test_dark_follows_the_system_and_the_button(browser: Any, folder: Path):
    opened = Reader(browser, folder / "report.html", color_scheme="dark")
    page = opened.page
    brightness = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    assert max(page.evaluate(brightness)) < 60
    page.locator("#theme").click()
    assert min(page.evaluate(brightness)) > 200
    page.wait_for_timeout(300)  # a busy browser puts its storage away a moment later
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("html").get_attribute("data-theme") == "light"  # it is remembered
    page.locator("#theme").click()
    page.emulate_media(media="print")
    assert min(page.evaluate(brightness)) == 255  # paper is white
    opened.context.close()


@pytest.mark.parametrize("width", [360, 768, 2200])
@pytest.mark.parametrize("name", ["report", "stopped", "five"])
def test_no_width_scrolls_sideways(browser: Any, folder: Path, five: Path, width: int, name: str):
    page = five if name == "five" else folder / f"{name}.html"
    opened = Reader(browser, page, viewport={"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []
    opened.context.close()


def test_a_run_with_less_says_so(browser: Any, folder: Path):
    opened = Reader(browser, folder / "stopped.html")
    text = opened.page.locator("main").inner_text()
    assert "interrupted" in text
    assert "2 of 4" in text
    assert "No run has scores yet" in text
    assert "Not in this folder: scores, gallery." in text
    assert "None yet: adawac evaluate RUN keeps some." in text
    assert opened.page.locator(".note").count() == 0  # nothing of this is a reason to worry
    assert opened.complaints == []
    opened.context.close()


def test_a_folder_that_lost_something_says_so_aloud(browser: Any, folder: Path):
    example_run(folder / "lost", slices=6, epochs=4)
    (folder / "lost" / "config.yaml").unlink()
    write_report(folder / "lost", folder / "lost.html")
    opened = Reader(browser, folder / "lost.html")
    [note] = opened.page.locator("#repeat .note").all_inner_texts()
    assert "config.yaml" in note
    assert "cannot be repeated" in note
    opened.context.close()


def test_print_layout(reader: Reader):
    page = reader.page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("#atlas .bar").is_visible()
    assert page.locator("#heatmap canvas").first.is_visible()
    sheet = page.pdf(format="A4", print_background=True)
    assert sheet.startswith(b"%PDF")
    assert 1 < sheet.count(b"/Type /Page\n") + sheet.count(b"/Type /Page ") < 40


def test_a_page_that_follows_a_run_can_be_paused(browser: Any, folder: Path):
    write_report(folder / "stopped", folder / "going.html", refresh=3)  # time enough to click in between
    opened = Reader(browser, folder / "going.html")
    with opened.page.expect_navigation():
        pass
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    # At once, as the page may load again between two calls.
    text = opened.page.locator("#refresh").evaluate(
        "button => { button.click(); window.same = true; return button.innerText; }"
    )
    assert text == "Follow again"
    opened.page.wait_for_timeout(4000)
    assert opened.page.evaluate("window.same") is True
    opened.context.close()


@pytest.mark.parametrize(("scheme", "where"), [("light", "page"), ("dark", "page"), ("light", "dialog")])
def test_accessibility(browser: Any, folder: Path, axe: str, scheme: str, where: str):
    opened = Reader(browser, folder / "report.html", color_scheme=scheme)
    if where == "dialog":
        opened.page.locator("#pictures button").first.click()
        opened.page.locator("dialog[open]").wait_for()
    for detail in opened.page.locator("main details").all():
        detail.evaluate("one => { one.open = true; }")
    opened.page.evaluate(axe + "; undefined")
    violations = opened.page.evaluate("axe.run(document).then(result => JSON.stringify(result.violations))")
    opened.context.close()
    grave = [
        (entry["id"], entry["impact"], [node["html"][:120] for node in entry["nodes"][:3]])
        for entry in json.loads(violations)
        if entry["impact"] in ("serious", "critical")
    ]
    assert grave == []


def test_scores_of_older_weights_are_said_to_be_that(browser: Any, tmp_path: Path):
    run = example_run(tmp_path / "run")
    write_scores(run.folder, "test-strict", [replace(score, epoch=3) for score in run.scores("test-strict")])
    write_report([run.folder], tmp_path / "report.html")
    opened = Reader(browser, tmp_path / "report.html")
    said = opened.page.locator("#scores .note").inner_text()
    assert "scores/test-strict.csv is of epoch 3, but checkpoint last is of epoch 20 by now" in said
    assert "adawac evaluate run" in said
    assert opened.complaints == []
    opened.context.close()


def test_an_axis_for_equal_scores_has_ticks_that_differ(browser: Any, tmp_path: Path):
    run = example_run(tmp_path / "run", slices=4, epochs=2)
    write_scores(run.folder, "test-strict", [replace(score, value=144.2) for score in run.scores("test-strict")])
    write_report(run.folder, tmp_path / "report.html")
    opened = Reader(browser, tmp_path / "report.html")
    ticks = opened.page.locator("svg[aria-label*='95 % intervals']").first.locator("text[text-anchor=middle]")
    texts = ticks.all_text_contents()
    assert len(texts) == len(set(texts)) > 1
    opened.context.close()
