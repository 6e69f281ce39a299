"""Size and speed of a report of an ACDC-sized run: 1324 samples × 360 epochs, 100 pictures of 224 × 224.

    python -m benchmarks.report [--out benchmarks/results/report.json]

It needs Chromium and Python's playwright, writes what it measured as JSON and prints it; `docs/how-to/report.md` quotes
it. The run is drawn, not trained: losses and weights vary from epoch to epoch as noisily as in a real one, for noise is
what compresses worst.
"""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from adawac.config import TrainConfig
from adawac.data.cases import SampleTable
from adawac.report import write_report
from adawac.runs import RunWriter, Slice
from benchmarks.result_files import RESULTS, show_result

SAMPLES, EPOCHS, PICTURES, SIDE = 1324, 360, 100, 224
CLASSES = ("background", "right ventricle", "myocardium", "left ventricle")
LOADS, MOVES = 5, 200

# Time from the event of a mouse move to the frame in which the cursor has been drawn.
LISTEN = """() => {
  window.spent = [];
  let moved = null;
  document.addEventListener("pointermove", (event) => { moved = event.timeStamp; }, true);
  document.addEventListener("atlas-drawn", () => { if (moved !== null) window.spent.push(performance.now() - moved); });
}"""
SORT = """async (by) => {
  const select = document.getElementById("atlas-sort");
  const start = performance.now();
  select.value = by;
  select.dispatchEvent(new Event("change"));
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def table(rng: np.random.Generator) -> SampleTable:
    case = np.array([f"patient{row // 19:03d}_frame01" for row in range(SAMPLES)])
    number = np.arange(SAMPLES) % 19
    share = np.clip(rng.normal(0.04, 0.03, SAMPLES), 0, None) * (number > 0)
    fraction = np.stack([1 - share, share / 4, share / 2, share / 4], axis=1)
    return SampleTable(
        id=np.array([f"acdc/{c[:10]}/{c}/2/{s}" for c, s in zip(case, number, strict=True)]),
        patient=np.array([name[:10] for name in case]),
        case=case,
        slice=number,
        axis=np.full(SAMPLES, "2"),
        unit=np.full(SAMPLES, "slice"),
        split=np.full(SAMPLES, "train"),
        group=np.full(SAMPLES, "drawn"),
        position=number,
        shape=np.full((SAMPLES, 2), SIDE),
        fraction=fraction,
        class_names=CLASSES,
    )


def pictures(samples: SampleTable, rng: np.random.Generator) -> list[Slice]:
    found = []
    for row in rng.choice(SAMPLES, PICTURES, replace=False):
        image = gaussian_filter(rng.normal(size=(SIDE, SIDE)), 8) * 20 + rng.normal(0, 0.15, (SIDE, SIDE))
        label = (gaussian_filter(rng.normal(size=(SIDE, SIDE)), 12) * 60).round().clip(0, 3).astype(np.uint8)
        prediction = np.roll(label, 3, axis=1)
        found.append(Slice(id=str(samples.id[row]), image=image.astype(np.float32), label=label, prediction=prediction))
    return found


def draw_run(folder: Path) -> None:
    rng = np.random.default_rng(0)
    samples = table(rng)
    dense = ~samples.label_sparse
    log_odds = np.zeros(SAMPLES)
    with RunWriter(folder, TrainConfig(epochs=EPOCHS), epochs=EPOCHS, summary={"method": "adawac"}) as run:
        rows = run.write_samples(samples)
        for epoch in range(1, EPOCHS + 1):
            ell_ce = (np.where(dense, 0.1, 0.01) + np.exp(-epoch / 30)) * rng.lognormal(0, 0.4, SAMPLES)
            reg_ac = (0.05 + 0.2 * np.exp(-epoch / 50)) * rng.lognormal(0, 0.3, SAMPLES)
            log_odds = np.clip(log_odds + 0.3 * (ell_ce - reg_ac) + rng.normal(0, 0.05, SAMPLES), -8, 8)
            beta = 1 / (1 + np.exp(-log_odds))
            run.log_history(epoch, rows, ell_ce=ell_ce, ell_dice=ell_ce, reg_ac=reg_ac, beta=beta)
            numbers = {"loss": float(ell_ce.mean()), "beta_sparse": float(beta[~dense].mean())}
            groups = {"beta_dense": float(beta[dense].mean()), "beta_auc": 0.9}
            run.log_metrics(epoch, numbers | groups | {"separated_sparse": 0.9, "separated_dense": 0.9})
        run.write_gallery("train", pictures(samples, rng))


def browse(path: Path) -> dict[str, Any]:
    """Open the report several times, then move the mouse over its atlas."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=executable, args=options)
        loads = []
        for _ in range(LOADS):
            page = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True).new_page()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            loads.append(page.evaluate("performance.getEntriesByName('ready')[0].startTime"))
        page.evaluate(LISTEN)
        page.evaluate("document.getElementById('heatmap').scrollIntoView({block: 'center', behavior: 'instant'})")
        box = page.locator("#heatmap").bounding_box()
        assert box is not None
        for step in range(MOVES):
            across, down = (step * 7 % 97) / 97, (step * 13 % 89) / 89
            page.mouse.move(box["x"] + 140 + (box["width"] - 150) * across, box["y"] + box["height"] * down)
            page.wait_for_timeout(20)
        spent = page.evaluate("window.spent")
        sorts = [page.evaluate(SORT, by) for by in ("foreground", "beta", "disagreement", "case")]
        version = browser.version
        browser.close()
    return {
        "browser": f"Chromium {version}, headless, without a GPU",
        "load_ms": {"median": round(statistics.median(loads)), "all": [round(load) for load in loads]},
        "move_to_frame_ms": {
            "moves": len(spent),
            "median": round(statistics.median(spent), 1),
            "p95": round(float(np.percentile(spent, 95)), 1),
            "max": round(max(spent), 1),
        },
        "sort_ms": round(statistics.median(sorts)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "report.json")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as root:
        draw_run(Path(root) / "run")
        start = time.perf_counter()
        path = write_report(Path(root) / "run", Path(root) / "report.html")
        result = {
            "samples": SAMPLES,
            "epochs": EPOCHS,
            "pictures": PICTURES,
            "write_s": round(time.perf_counter() - start, 2),
            "bytes": path.stat().st_size,
            **browse(path),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load_average": round(os.getloadavg()[0], 1),
        }
    show_result(result, out)


if __name__ == "__main__":
    main()
