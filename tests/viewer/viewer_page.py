"""The viewer's page in a browser, with the questions that tests ask of it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np

from adawac.data.task import class_colour
from adawac.viewer import serve
from tests.browser import WatchedPage

# WebGL in software.
OPTIONS = ("--headless=new", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


class Reader(WatchedPage):
    """The page of a viewer."""

    def __init__(self, browser: Any, scan: Path, labels: Sequence[Path] = (), **options: Any):
        self.viewer = serve(scan, labels)
        super().__init__(browser, self.viewer.url, (760, 600), **options)

    def picture(self) -> Any:
        """What is on the canvas, as it is composed on the page: (height, width, 3) from 0 to 255."""
        self.page.evaluate("adawac.stage.update().then(() => new Promise(requestAnimationFrame))")
        shot = io.BytesIO(self.page.locator("#canvas").screenshot())
        return (matplotlib.image.imread(shot)[..., :3] * 255).round().astype(int)

    def show(self, view: str) -> None:
        chosen = self.page.locator(f"input[value='{view}']")
        self.page.locator("#views label", has=chosen).click()

    def canvas_place(self, world: Sequence[float], plane: int) -> tuple[int, int]:
        """Where NiiVue says that a place in the world is, in pixels of the canvas."""
        code = """([mm, plane]) => { const { screen } = adawac.stage;
            const found = screen.frac2canvasPosWithTile(screen.mm2frac(mm, 0, true), plane);
            return found.pos.map((one) => one / screen.uiData.dpr); }"""
        x, y = self.page.evaluate(code, [[float(coordinate) for coordinate in world], plane])
        return int(y), int(x)

    def tile(self, plane: int) -> tuple[float, ...]:
        """Left, top, width and height of a plane on the canvas."""
        code = """(plane) => { const { screenSlices, uiData } = adawac.stage.screen;
            const found = screenSlices.find((one) => one.axCorSag === plane);
            return [...found.leftTopWidthHeight].map((one) => one / uiData.dpr); }"""
        return tuple(self.page.evaluate(code, plane))

    def reset(self) -> None:
        """Put all controls back to where they were when the page was opened."""
        self.page.mouse.move(0, 0)
        self.page.evaluate("""() => {
            document.querySelectorAll("input").forEach((one) => {
                if (one.checked !== one.defaultChecked && (one.defaultChecked || one.type !== "radio")) one.click();
                if (one.type === "range" && one.value !== one.defaultValue) {
                    one.value = one.defaultValue;
                    one.dispatchEvent(new Event("input"));
                }
            });
            const select = document.querySelector("select");
            select.selectedIndex = 0;
            select.dispatchEvent(new Event("change"));
            adawac.stage.restart();
        }""")

    def close(self) -> None:
        self.context.close()
        self.viewer.close()


def rgb(value: int) -> Any:
    colour = class_colour(value)
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


def like(picture: Any, colour: Any, tolerance: int = 12) -> Any:
    return np.abs(picture - colour).max(axis=-1) <= tolerance


def opaque(reader: Reader, layer: int = 0) -> None:
    slider = reader.page.locator(".slider input").nth(layer)
    slider.fill("100")
