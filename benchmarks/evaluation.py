"""Time `adawac evaluate` from files to scores, in parts, and the released code's way beside it.

    python -m benchmarks.evaluation runs/unet                             a run of `adawac train`
    python -m benchmarks.evaluation runs/unet --store store --epochs 30   trains a UNet on the store first
    python -m benchmarks.evaluation runs/unet --released                  the released code's way as well

Seconds are wall-clock. The first call in this process starts CUDA and the scoring processes, but its libraries are
imported before; the command is a new process, imports included.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import segmentation_models_pytorch  # noqa: F401 (imported before the clock starts)
import torch

import adawac
from adawac.config import DataConfig, ModelConfig, TrainConfig, ValidationConfig
from adawac.data.splits import resolve_split
from adawac.data.store import Store
from adawac.evaluation import evaluate
from adawac.evaluation.case_scores import Rules, score_case
from adawac.inference.predictor import Predictor
from adawac.inference.trained import load_trained
from adawac.runs import Run
from benchmarks.result_files import RESULTS, write_result

OUT = RESULTS / "evaluation.json"
OPTIONS = {"convention": "adawac", "gallery": 0, "progress": False}


def timed(call):
    """Return the seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def parts(run, store, cases, device):
    """Time what an evaluation consists of, one after the other."""
    load, predictor = timed(lambda: Predictor.of([load_trained(run, "last")], device=device))
    read, stacks = timed(lambda: [np.array(store.stack(case)[0]) for case in cases])
    predict, predictions = min(
        (timed(lambda: list(predictor.predict(store.stack(case)[0] for case in cases))) for _ in range(3)),
        key=lambda pair: pair[0],
    )
    rules = Rules(convention="adawac", unit="voxel")
    score, _ = timed(
        lambda: [score_case(store.path, case, labels, rules) for case, labels in zip(cases, predictions, strict=True)]
    )
    return {
        "slices": sum(len(stack) for stack in stacks),
        "load_network_s": load,
        "read_slices_s": read,
        "predict_s": predict,
        "score_in_one_process_s": score,
    }


def released_way(run, store, cases, device):
    """Slice by slice in fp32, SciPy's zoom there and back, medpy's Dice and HD95; return seconds and mean Dice."""
    from medpy.metric import binary
    from scipy.ndimage import zoom

    trained = load_trained(run, "last", device)
    height, width = trained.image_size
    scores = []
    start = time.perf_counter()
    for case in cases:
        images, labels = store.stack(case)
        found = np.zeros(labels.shape, dtype=np.uint8)
        for number, image in enumerate(images[:, 0]):
            rows, columns = image.shape
            x = zoom(image, (height / rows, width / columns), order=3)
            with torch.no_grad():
                logits = trained.network(torch.from_numpy(x)[None, None].float().to(device))
            classes = logits.argmax(1)[0].cpu().numpy()
            found[number] = zoom(classes, (rows / height, columns / width), order=0)
        for label in range(1, store.num_classes):
            ours, other = found == label, labels == label
            both = ours.any() and other.any()
            scores.append(binary.dc(ours, other) if both else float(not ours.any() and not other.any()))
            if both:
                binary.hd95(ours, other)
    return {"released_way_s": time.perf_counter() - start, "released_way_dice": float(np.mean(scores))}


def command(run, data, device):
    """Time the command in a process of its own."""
    words = [sys.executable, "-m", "adawac", "evaluate", str(run), "--convention", "adawac", "--device", device]
    words += ["--gallery", "0", "--json", *(["--data", str(data)] if data else [])]
    seconds, _ = timed(lambda: subprocess.run(words, check=True, capture_output=True))
    return seconds


def train(folder, store, epochs):
    config = TrainConfig(
        epochs=epochs,
        data=DataConfig(store=store.absolute()),
        model=ModelConfig(name="unet"),
        validation=ValidationConfig(every=0),
    )
    adawac.fit(config, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--store", type=Path, help="the store, if it has moved or the run is to be trained")
    parser.add_argument("--epochs", type=int, default=0, help="train a UNet for so long, if there is no such run")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--released", action="store_true", help="time the released code's way, too")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.epochs and not (args.run / "run.json").is_file():
        train(args.run, args.store, args.epochs)
    call = lambda **more: timed(  # noqa: E731
        lambda: evaluate(args.run, data=args.store, device=args.device, **{**OPTIONS, **more})
    )
    run, store = Run(args.run), Store(args.store or Run(args.run).config.data.store)
    table = resolve_split(store.table, run.config.data.split, run.config.seed)
    cases = table.take(table.split == "test").cases
    on_gpu = args.device.startswith("cuda")
    result = {
        "machine": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU",
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scipy")},
        "model": run.config.model.name,
        "dataset": store.dataset,
        "volumes": len(cases),
        "epochs": run.epoch,
    }

    def note(**found):
        """Write what is known so far: the most telling first, in case that there is no time for the rest."""
        result.update(found)
        print(json.dumps(found), flush=True)
        write_result(args.out, result)

    first, (evaluation,) = call()
    mean = {name: evaluation.summaries[name][-1].mean for name in ("dice", "hd95")}
    note(mean_dice=mean["dice"], mean_hd95_voxels=mean["hd95"], first_call_s=first)
    note(again_s=min(call()[0] for _ in range(args.repeats)))
    note(parts=parts(run, store, cases, args.device))
    note(again_without_processes_s=call(workers=0)[0])
    note(again_with_galleries_s=call(gallery=100)[0])
    note(command_s=min(command(args.run, args.store, args.device) for _ in range(2)))
    if args.released:
        note(**released_way(run, store, cases, args.device))


if __name__ == "__main__":
    main()
