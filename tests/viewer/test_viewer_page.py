"""The viewer as a reader meets it: what it says, its controls, the keyboard, and what must not happen."""

import json
from pathlib import Path
from typing import Any

import pytest

from adawac.inference.label_files import class_table, write_sidecar
from adawac.viewer import serve
from tests.viewer.viewed_scans import AFFINE, BLOCK, block, make_scan, save
from tests.viewer.viewer_page import Reader, rgb

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect


def test_it_loads_with_everything_in_it(reader: Reader):
    page = reader.page
    assert page.title() == "scan.nii.gz · adawac view"
    expect(page.locator("#message")).to_be_hidden()
    assert page.locator("#layers .layer").count() == 1
    assert page.locator("#classes tbody tr").all_inner_texts() == ["heart 1\n\t–", "lung 2\n\t1.4"]
    swatches = page.locator("#classes .swatch").evaluate_all("all => all.map(one => one.style.backgroundColor)")
    assert swatches == [f"rgb({', '.join(map(str, rgb(value)))})" for value in (1, 2)]
    assert page.evaluate("document.documentElement.scrollWidth") <= 760


# -- reading and controls ---------------------------------------------------------------------------------------------


def test_the_readout_says_what_is_under_the_pointer(reader: Reader):
    reader.show("axial")
    box = reader.page.locator("#canvas").bounding_box()
    world = (AFFINE @ (5, 14, 9, 1))[:3]
    row, column = reader.canvas_place(world, 0)
    reader.page.mouse.move(box["x"] + column, box["y"] + row)
    readout = reader.page.locator("#readout")
    expect(readout).to_contain_text("5, 14, 9")
    assert readout.inner_text().split("\n") == [
        *("World, mm (R A S)", *[f"{readout.locator('dd').first.inner_text()}"]),
        *("Voxel", "5, 14, 9", "Value", "1000", "truth.nii.gz", "lung"),
    ]
    shown = [float(number.replace("−", "-")) for number in readout.locator("dd").first.inner_text().split()]
    assert shown == pytest.approx(world, abs=1.5)
    row, column = reader.canvas_place((AFFINE @ (20, 5, 9, 1))[:3], 0)
    reader.page.mouse.click(box["x"] + column, box["y"] + row)
    expect(reader.page.locator("#live")).to_have_text("Voxel 20, 5, 9; value 300; truth.nii.gz: background")


def test_the_keyboard_alone_reaches_everything(reader: Reader):
    page = reader.page
    page.locator("#theme").focus()
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.type || document.activeElement.tagName")
        )
    kinds = ("radio", "canvas", "checkbox", "range", "select-one", "number", "SUMMARY")
    assert [kind for kind in kinds if kind not in reached] == []
    page.locator("#canvas").focus()
    live = page.locator("#live")
    middle = [(extent.start + extent.stop - 1) // 2 for extent in BLOCK]
    page.keyboard.press("Home")
    expect(live).to_contain_text(f"Voxel {middle[0]}, ")
    before = [int(index) for index in live.inner_text().split(";")[0].removeprefix("Voxel ").split(", ")]
    # On the screen's right is the patient's left, where the first voxel axis runs; up is the front, against the second.
    for key in ("ArrowRight", "ArrowUp", "ArrowUp", "PageUp"):
        page.keyboard.press(key)
    expect(live).to_contain_text(f"Voxel {before[0] + 1}, {before[1] - 2}, {before[2] + 1};")
    page.keyboard.press("Shift+ArrowRight")
    expect(live).to_contain_text(f"Voxel {before[0] + 11}, ")
    page.keyboard.press("1")
    expect(live).to_have_text("Layer 1 off")
    expect(page.get_by_role("checkbox", name="1 truth.nii.gz")).not_to_be_checked()
    page.keyboard.press("v")
    expect(live).to_have_text("View: Axial")
    expect(page.locator("#views input[value=axial]")).to_be_checked()
    for _ in range(2):
        page.keyboard.press("v")
    page.keyboard.press("ArrowRight")  # in the sagittal plane the right is the front
    expect(live).to_contain_text(f"Voxel {before[0] + 11}, {before[1] - 3}, {before[2] + 1};")


def test_grey_values_are_chosen_by_hand_or_by_name(reader: Reader):
    reader.show("axial")
    page = reader.page
    pixel = reader.canvas_place((AFFINE @ (20, 5, 9, 1))[:3], 0)  # 300
    page.get_by_label("Window").select_option("full")
    assert page.get_by_label("White at").input_value() == "1000"
    assert reader.picture()[pixel] == pytest.approx(0.3 * 255, abs=4)
    page.get_by_label("Black at").fill("100")
    page.get_by_label("White at").fill("500")
    page.get_by_label("White at").blur()
    assert reader.picture()[pixel] == pytest.approx(0.5 * 255, abs=4)
    assert page.get_by_label("Window").input_value() == "own"
    page.get_by_label("Black at").fill("900")  # above white: not taken
    page.get_by_label("Black at").blur()
    assert reader.picture()[pixel] == pytest.approx(0.5 * 255, abs=4)


def test_several_layers(browser: Any, folder: Path):
    opened = Reader(browser, folder / "scan.nii.gz", [folder / "truth.nii.gz", folder / "prediction.nii.gz"])
    page = opened.page
    outlines = [page.get_by_label(f"Outline of {name}.nii.gz").is_checked() for name in ("truth", "prediction")]
    assert outlines == [False, True]
    assert page.locator("#classes tbody tr").last.inner_text() == "lung 2\n\t1.4\t0.9"
    expect(page.locator("#readout")).to_contain_text("prediction.nii.gz\nlung", use_inner_text=True)
    assert opened.complaints == []
    opened.close()


def test_a_scan_alone_dark_by_the_system_and_light_by_the_button(browser: Any, folder: Path):
    opened = Reader(browser, folder / "scan.nii.gz", color_scheme="dark")
    brightness = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    assert "No label maps were given" in opened.page.locator("#layers").inner_text()
    assert opened.page.locator("#classes-section").is_hidden()
    assert max(opened.page.evaluate(brightness)) < 60
    assert opened.page.locator("#theme").get_attribute("aria-pressed") == "true"
    opened.page.locator("#theme").click()
    assert min(opened.page.evaluate(brightness)) > 200
    assert opened.complaints == []
    opened.close()


# -- what must not happen ---------------------------------------------------------------------------------------------

HOSTILE = (
    "<img src=x onerror='window.hacked = 1'>\"'",
    "</script><script>window.hacked = 1</script>",
    "line\nbreak\u2028more",
    "\u202eright to left\u200f",
    "x" * 200,
    "%2e%2e&amp;#?",
)


def test_hostile_names_are_text_and_run_nothing(browser: Any, tmp_path: Path):
    safe = [name.replace("/", "\u2215") for name in HOSTILE]  # no file name has a slash
    scan = make_scan(tmp_path / f"{safe[0]}.nii.gz")
    labels = [save(tmp_path / f"{name}.nii.gz", block(number)) for number, name in enumerate(safe, start=1)]
    names = class_table(["background", *HOSTILE], range(len(HOSTILE) + 1))
    write_sidecar(tmp_path / f"{safe[1]}.json", {"classes": names})
    opened = Reader(browser, scan, labels, viewport={"width": 360, "height": 700})
    page = opened.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, script, bdi *").count() == 1 + 3  # the page's own icon and scripts
    assert page.locator("#title").text_content() == scan.name
    assert page.locator(".layer .name").all_text_contents() == [path.name for path in labels]
    assert page.locator("#classes .name").all_text_contents() == list(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.complaints == []
    opened.close()


def test_the_policy_stops_a_script_that_gets_in(reader: Reader):
    code = (
        "const one = document.createElement('script'); one.textContent = 'window.hacked = 1';"
        "document.body.append(one);"
        "fetch('http://192.0.2.1/').catch(() => {})"
    )
    reader.page.evaluate(code)
    assert reader.page.evaluate("window.hacked") is None
    reader.page.wait_for_timeout(100)
    assert sum("Content Security Policy" in complaint for complaint in reader.complaints) >= 2
    assert not any(complaint.startswith("a request for") for complaint in reader.complaints)
    reader.complaints.clear()


def test_message_when_the_scan_is_gone(browser: Any, tmp_path: Path):
    with serve(make_scan(tmp_path / "scan.nii")) as viewer:
        (tmp_path / "scan.nii").unlink()
        page = browser.new_page()
        page.goto(viewer.url)
        page.wait_for_selector("html[data-failed]", state="attached")
        assert page.locator("#message").inner_text().startswith("The scan cannot be shown: ")
        page.close()


def test_message_without_webgl(browser: Any, folder: Path):
    with serve(folder / "scan.nii.gz") as viewer:
        page = browser.new_page()
        page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        page.goto(viewer.url)
        page.wait_for_selector("html[data-failed]", state="attached")
        assert "this browser has no WebGL2" in page.locator("#message").inner_text()
        page.close()


# -- accessibility ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("dark", 1100), *(pytest.param(*look, marks=pytest.mark.slow) for look in [("light", 1100), ("light", 360)])],
)
def test_accessibility(browser: Any, folder: Path, axe: str, scheme: str, width: int):
    labels = [folder / "truth.nii.gz", folder / "prediction.nii.gz"]
    opened = Reader(
        browser, folder / "scan.nii.gz", labels, color_scheme=scheme, viewport={"width": width, "height": 600}
    )
    opened.page.locator("#keys-section").evaluate("one => { one.open = true; }")
    opened.page.evaluate(axe + "; undefined")
    violations = opened.page.evaluate("axe.run(document).then(result => JSON.stringify(result.violations))")
    opened.close()
    grave = [
        (entry["id"], entry["impact"], [node["html"][:120] for node in entry["nodes"][:3]])
        for entry in json.loads(violations)
        if entry["impact"] in ("serious", "critical")
    ]
    assert grave == []
