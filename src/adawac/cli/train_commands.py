"""`adawac train`, `demo`, `models`, `bench` and `nnunet-path`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.shell import START, TRAIN, AsJson, app, plain_console, print_json, print_table, print_text, printable
from adawac.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from adawac.config import TrainConfig


@app.command(group=TRAIN)
def train(
    data: Annotated[Path | None, Parameter(help="The prepared store; the built-in phantom by default.")] = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The run folder to be made.")] = None,
    method: Annotated[str | None, Parameter(help="How CE is weighed against consistency: adawac, baseline, …")] = None,
    preset: Annotated[Literal["paper", "official"] | None, Parameter(help="As the text says, or as released.")] = None,
    model: Annotated[str | None, Parameter(help="The network: unet, transunet, smp:…, monai:…")] = None,
    subset: Annotated[str | None, Parameter(help="full, half-slice, half-vol or half-sparse.")] = None,
    split: Annotated[str | None, Parameter(help="paper, stratified, fold:K/N, or a folder with train.txt.")] = None,
    pretrained: Annotated[str | None, Parameter(help="imagenet, imagenet-offline or a file.")] = None,
    epochs: Annotated[int | None, Parameter(help="Passes over the training samples.")] = None,
    seed: Annotated[int | None, Parameter(help="All randomness follows from it.")] = None,
    devices: Annotated[int | None, Parameter(help="Devices on each machine.")] = None,
    config: Annotated[
        Path | None, Parameter(help="A YAML file or a recipe (acdc-unet, …); options come on top of it.")
    ] = None,
    changes: Annotated[
        tuple[str, ...], Parameter(name="--set", help="Any setting, as path=value; may be repeated.")
    ] = (),
    resume: Annotated[bool, Parameter(help="Go on with the run in --out.")] = False,
    print_config: Annotated[bool, Parameter(help="Print the resolved configuration as YAML and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a network on a prepared store, or without one on the built-in phantom.

    Ctrl-C saves; --resume goes on, and the result is that of a run that was never interrupted.

    Example: adawac train store --method adawac --epochs 150 --out runs/adawac

    Example: adawac train --epochs 5 --out runs/phantom

    Example: adawac train store --config acdc-unet --out runs/acdc

    Example: adawac train store --set optim.lr=0.05 --set method.options.eta_beta=8 --print-config > recipe.yaml
    """
    from adawac.config import TrainConfig, assignments, dumps, load, override, recipe_path

    # Options of their own for what changes most; all other settings are reached by --set.
    options = {
        "data.store": data and data.absolute(),
        "method.name": method,
        "method.preset": preset,
        "model.name": model,
        "data.subset": subset,
        "data.split": split,
        "model.pretrained": pretrained,
        "epochs": epochs,
        "seed": seed,
        "hardware.devices": devices,
    }
    settings = {path: value for path, value in options.items() if value is not None} | assignments(changes)
    if resume and config is None and out is not None:
        from adawac.runs import Run

        base = Run(out).own_config()
    else:
        base = TrainConfig() if config is None else load(TrainConfig, recipe_path(config))
    resolved = override(base, settings)
    if print_config:
        print_text(dumps(resolved))
        return
    if out is None:
        raise ConfigError("Expected a folder for the run, but got none. Give --out.")
    _train(resolved, out, resume, as_json)


def _train(config: "TrainConfig", out: Path, resume: bool, as_json: bool) -> None:
    import shlex

    from adawac.cli.display import Display, standing
    from adawac.train import fit

    display = Display(quiet=as_json)
    if config.data.store is None and os.environ.get("RANK", "0") == "0" and not as_json:
        print_text("No store was given: training on the built-in phantom.\n")
    try:
        run = fit(config, out, resume=resume, watch=display)
    except KeyboardInterrupt:
        display.close()
        words = shlex.join(["adawac", "train", "--out", str(out), "--resume"])
        if not as_json:
            print_text(printable(f"Saved. Go on with: {words}\n"))
        raise
    finally:
        display.close()
    if not _speaks():
        return
    if as_json:
        print_json(standing(run))
    else:
        print_text(f"Done: {printable(str(out))}\n")


def _speaks() -> bool:
    """Tell whether this process is the first of those that trained together: torchrun has them all come here."""
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


@app.command(group=TRAIN)
def models(
    pattern: Annotated[str | None, Parameter(help="Which ones, such as smp:Unet/*; a selection by default.")] = None,
    /,
    *,
    as_json: AsJson = False,
) -> None:
    """List the networks that can be built, with their size and where their latents are read.

    Example: adawac models

    Example: adawac models "smp:Unet/*"
    """
    from adawac.models import list_models

    networks = list_models(pattern)
    if not networks:
        raise UnknownNameError(f"Expected a pattern of names, but {pattern!r} matches none. See `adawac models`.")
    if as_json:
        print_json([vars(network) for network in networks])
        return
    columns = 4 if plain_console().width >= 120 else 3
    sizes = ("" if network.millions is None else f"{network.millions:.1f}" for network in networks)
    rows = [
        (network.name, size, network.tap, network.note)[:columns] for network, size in zip(networks, sizes, strict=True)
    ]
    print_table(("name", "parameters, M", "tap", "")[:columns], rows, text_columns=(0, 2, 3))


@app.command(group=TRAIN)
def bench(
    data: Annotated[Path | None, Parameter(help="A prepared store; the phantom by default.")] = None,
    /,
    *,
    model: Annotated[str, Parameter(help="The network.")] = "unet",
    method: Annotated[str, Parameter(help="The method.")] = "adawac",
    split: Annotated[str, Parameter(help="paper, stratified, fold:K/N, or a folder with train.txt.")] = "paper",
    batch_size: Annotated[int, Parameter(help="Samples in a batch.")] = 24,
    image_size: Annotated[int, Parameter(help="Height and width of the network's input.")] = 224,
    steps: Annotated[int, Parameter(help="Steps that are timed.")] = 20,
    changes: Annotated[
        tuple[str, ...], Parameter(name="--set", help="Any setting of `adawac train`, as path=value.")
    ] = (),
    as_json: AsJson = False,
) -> None:
    """Measure training on this machine: slices/s, memory, share of time per part.

    Example: adawac bench

    Example: adawac bench store --model transunet --set hardware.precision=bf16
    """
    from adawac.cli.display import bar
    from adawac.config import TrainConfig, assignments, override
    from adawac.train.benchmark import measure

    settings = {
        "data.store": data and data.absolute(),
        "model.name": model,
        "method.name": method,
        "method.preset": "official",
        "data.split": split,
        "data.batch_size": batch_size,
        "data.image_size": image_size,
        **assignments(changes),
    }
    with bar() as watch:
        config = override(TrainConfig(), settings)
        measured = measure(config, steps=steps, watch=lambda done, total: watch("steps", done, total))
    if as_json:
        print_json(measured)
        return
    console = plain_console()
    size = "×".join(map(str, measured["image_size"]))
    console.print(
        f"{measured['method']} with {measured['model']}, {measured['forward']}, {measured['precision']}, batches of "
        f"{measured['batch_size']} at {size}, on {measured['device']}"
    )
    how = "replayed as one CUDA graph" if measured["captured"] else f"eager ({measured['eager_because']})"
    console.print(f"{measured['slices_per_second']:.1f} slices/s: a step takes {measured['step_ms']:.1f} ms, {how}")
    console.print(
        f"peak memory {measured['peak_gib']:.2f} GiB, first step after {measured['seconds_to_first_step']:.1f} s"
    )
    total = sum(measured["parts_ms"].values())
    parts = ((name, f"{spent:.2f}", f"{spent / total:.0%}") for name, spent in measured["parts_ms"].items())
    print_table(("part of a step", "ms", "share"), parts)


@app.command(group=TRAIN, name="nnunet-path")
def nnunet_path() -> None:
    """Print the folder that nnU-Net needs to find AdaWAC's trainer.

    Example: adawac nnunet-path

    Example: export nnUNet_extTrainer="$(adawac nnunet-path)"
    """
    from adawac.integrations.nnunet import trainer_folder

    print_text(f"{trainer_folder()}\n")


@app.command(group=START)
def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for the data, the runs and the report.")] = Path("demo"),
    epochs: Annotated[int, Parameter(help="Passes over the training samples.")] = 18,
    seed: Annotated[int, Parameter(help="Draws the network, the views and the order of the samples.")] = 1,
    as_json: AsJson = False,
) -> None:
    """See the whole tool work: draw data, train three methods, score them, write a report.

    Abdomens are drawn, the first half of each is kept, where most slices carry no label, and the same small network is
    trained on them three times: by one augmented view (baseline), by two (pair), and by two that AdaWAC weighs.
    Minutes on two cores. Ctrl-C stops, the same command goes on.

    Example: adawac demo

    Example: adawac demo --seed 2 --out demo
    """
    from adawac.cli.display import Display
    from adawac.reproduction.demo import demonstrate

    console = plain_console(quiet=as_json)
    displays: list[Display] = []

    def watch() -> Display:
        for display in displays:
            display.close()
        displays.append(Display(quiet=as_json))
        return displays[-1]

    try:
        outcome = demonstrate(
            out, seed=seed, epochs=epochs, watch=watch, note=lambda text: console.print(printable(text), soft_wrap=True)
        )
    finally:
        for display in displays:
            display.close()
    if as_json:
        print_json(outcome)
        return
    rows = ((method, f"{100 * dice:.1f}") for method, dice in outcome["dice"].items())
    print_table(("method", "mean DSC on the test cases"), rows)
    console.print(
        f"A large β marks label-dense slices in {outcome['beta_auc']:.0%} of all pairs of a dense and an empty one. "
        "One seed is an anecdote: --seed draws another."
    )
    console.print(printable(f"The report: {outcome['report']}"), soft_wrap=True)
