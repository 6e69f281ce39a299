"""Size and speed of a run folder: 10⁵ samples × 200 epochs of history, a large checkpoint, 10⁴ runs in a list.

    python -m benchmarks.run_folder [--folder FOLDER]

It needs 2 GB of disk for a while and prints one JSON object; `docs/reference/run-folder.md` quotes it.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adawac.config import TrainConfig
from adawac.data.cases import SampleTable
from adawac.runs import FIELDS, Run, RunWriter, list_runs

SAMPLES, EPOCHS, RUNS = 100_000, 200, 10_000


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return round(time.perf_counter() - start, 4)


def table(n: int) -> SampleTable:
    case = np.array([f"case{row // 100:04d}" for row in range(n)])
    number = np.arange(n) % 100
    return SampleTable(
        id=np.array([f"bench/{c}/{c}/2/{s}" for c, s in zip(case, number, strict=True)]),
        patient=case,
        case=case,
        slice=number,
        axis=np.full(n, "2"),
        unit=np.full(n, "slice"),
        split=np.full(n, "train"),
        group=np.full(n, ""),
        position=number,
        shape=np.full((n, 2), 512),
        fraction=np.random.default_rng(0).dirichlet(np.ones(9), n),
        class_names=tuple(f"class{label}" for label in range(9)),
    )


def history(folder: Path) -> dict[str, Any]:
    rng, rows = np.random.default_rng(0), np.arange(SAMPLES)
    with RunWriter(folder, TrainConfig(epochs=EPOCHS), epochs=EPOCHS) as writer:
        result: dict[str, Any] = {"table_write_s": seconds(lambda: writer.write_samples(table(SAMPLES)))}
        appends = []
        for epoch in range(1, EPOCHS + 1):
            values = dict(zip(FIELDS, rng.random((4, SAMPLES), dtype=np.float32), strict=True))
            appends.append(seconds(lambda e=epoch, v=values: writer.log_history(e, rows, **v)))
        result["append_epoch_s_median"] = float(np.median(appends))
        result["rewind_s"] = seconds(lambda: writer.rewind(EPOCHS))
    result["history_bytes"] = (folder / "history.bin").stat().st_size
    result["table_bytes"] = (folder / "samples.csv").stat().st_size
    run = Run(folder)
    result["table_read_s"] = seconds(lambda: run.samples)
    result["history_open_s"] = seconds(lambda: run.history)
    result["one_field_s"] = seconds(lambda: run.history["beta"])
    result["one_epoch_s"] = seconds(lambda: run.history.read("beta", slice(-1, None)))
    result["one_sample_s"] = seconds(lambda: run.history.read("beta", rows=[54_321]))
    return result


def checkpoint(folder: Path, parameters: int = 105_280_000) -> dict[str, Any]:
    """TransUNet's weights and SGD's momentum."""
    arrays = {name: np.zeros(parameters, np.float32) for name in ("model", "momentum")}
    with RunWriter(folder, TrainConfig()) as writer:
        save = seconds(lambda: writer.save_checkpoint("last", arrays, {"epoch": 1}))
    size = (folder / "checkpoints" / "last.safetensors").stat().st_size
    return {"checkpoint_bytes": size, "save_s": save, "load_s": seconds(lambda: Run(folder).checkpoint())}


def listing(folder: Path) -> dict[str, Any]:
    info = {"format_version": 1, "status": "finished", "epoch": 150, "epochs": 150, "summary": {"method": "adawac"}}
    for number in range(RUNS):
        run = folder / f"grid-{number % 100:02d}" / f"run-{number:05d}"
        (run / "checkpoints").mkdir(parents=True)
        (run / "run.json").write_text(json.dumps(info, indent=2))
    runs: list[Run] = []
    spent = seconds(lambda: runs.extend(list_runs(folder)))
    assert len(runs) == RUNS
    assert {run.status for run in runs} == {"finished"}
    return {"runs": RUNS, "list_s": spent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    root = Path(tempfile.mkdtemp(dir=parser.parse_args().folder))
    try:
        result = history(root / "history") | checkpoint(root / "checkpoint") | listing(root / "runs")
    finally:
        shutil.rmtree(root)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
