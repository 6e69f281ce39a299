"""`adawac train`, `crossval`, `demo`, `models`, `bench` and `nnunet-path`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from adawac.cli.shell import (
    HERE,
    START,
    TRAIN,
    AsJson,
    Machines,
    app,
    plain_console,
    print_json,
    print_table,
    print_text,
    printable,
)
from adawac.errors import ConfigError, UnknownNameError, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adawac.config import TrainConfig
    from adawac.reproduction.crossvalidation import CrossValidation

Changes = Annotated[tuple[str, ...], Parameter(name="--set", help="Any setting, as path=value; may be repeated.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What changes most has an option of its own, in `train` and in `crossval`; --set reaches all settings."""

    method: Annotated[str | None, Parameter(help="How CE is weighed against consistency: adawac, baseline, …")] = None
    preset: Annotated[Literal["paper", "official", "robust"] | None, Parameter(help="The objective's preset.")] = None
    model: Annotated[str | None, Parameter(help="The network: unet, transunet, smp:…, monai:…")] = None
    subset: Annotated[str | None, Parameter(help="full, half-slice, half-vol or half-sparse.")] = None
    pretrained: Annotated[str | None, Parameter(help="imagenet, imagenet-offline or a file.")] = None
    epochs: Annotated[int | None, Parameter(help="Passes over the training samples.")] = None
    seed: Annotated[int | None, Parameter(help="All randomness follows from it.")] = None
    devices: Annotated[int | None, Parameter(help="Devices on each machine.")] = None
    config: Annotated[
        Path | None, Parameter(help="A YAML file or a recipe (acdc-unet, …); options come on top of it.")
    ] = None
    changes: Changes = ()

    def base(self) -> "TrainConfig":
        """Return what the options come on top of."""
        from adawac.config import TrainConfig, load, recipe_path

        return TrainConfig() if self.config is None else load(TrainConfig, recipe_path(self.config))

    def on_top_of(self, base: "TrainConfig", data: Path | None, split: str | None = None) -> "TrainConfig":
        """Return a configuration with the store and all options that were typed; --set comes last."""
        from adawac.config import assignments, override

        typed = {name: getattr(self, name, split) for name in _SETTINGS}
        named: dict[str, tuple[str, Any]] = {} if data is None else {"STORE": ("data.store", data.absolute())}
        named |= {f"--{name}": (_SETTINGS[name], value) for name, value in typed.items() if value is not None}
        settings = dict(named.values()) | assignments(self.changes)
        return override(base, settings, ", ".join([*named, *(f"--set {change}" for change in self.changes)]))


_SETTINGS = {
    "method": "method.name",
    "preset": "method.preset",
    "model": "model.name",
    "subset": "data.subset",
    "split": "data.split",
    "pretrained": "model.pretrained",
    "epochs": "epochs",
    "seed": "seed",
    "devices": "hardware.devices",
}
_DEFAULTS = TrainingOptions()


@app.command(group=TRAIN)
def train(
    data: Annotated[Path | None, Parameter(help="The prepared store; the built-in phantom by default.")] = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The run folder to be made.")] = None,
    split: Annotated[str | None, Parameter(help="paper, stratified, fold:K/N, or a folder with train.txt.")] = None,
    options: TrainingOptions = _DEFAULTS,
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
    from adawac.config import dumps

    if resume and options.config is None and out is not None:
        from adawac.runs import Run

        base = Run(out).own_config()
    else:
        base = options.base()
    resolved = options.on_top_of(base, data, split)
    if print_config:
        print_text(dumps(resolved))
        return
    if out is None:
        raise ConfigError("Expected a folder for the run, but got none. Give --out.")
    _check_before_torch(resolved, out, resume=resume)
    _train(resolved, out, resume, as_json)


@app.command(group=TRAIN)
def crossval(
    data: Annotated[Path, Parameter(help="The prepared store.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the folds and what they say together.")],
    folds: Annotated[int, Parameter(help="How many parts the patients are dealt into.")] = 5,
    test: Annotated[
        Literal["keep", "fold"] | None,
        Parameter(help="Patients of the store's test set: keep them out of all folds, or fold them in."),
    ] = None,
    options: TrainingOptions = _DEFAULTS,
    convention: Annotated[
        Literal["strict", "adawac", "transunet", "nan"], Parameter(help="What empty masks score.")
    ] = "strict",
    pictures: Annotated[int, Parameter(help="Suspected label errors to draw at most.")] = 50,
    known: Annotated[
        Path | None,
        Parameter(help="Ids of samples whose labels are known to be wrong, one a line: are they found?"),
    ] = None,
    machines: Machines = HERE,
    jobs: Annotated[int | None, Parameter(help="Folds at a time; by default one for each GPU, or 1.")] = None,
    as_json: AsJson = False,
) -> int:
    """Train once for each fold of the patients; score every patient once, and list labels that may be wrong.

    One table of all patients, each scored by a network that never saw them; the networks as an ensemble for `adawac
    predict`; a list of suspected label errors for a labeller; a report. Finished folds are kept and interrupted ones
    go on: give the same command again.

    Example: adawac crossval store --folds 5 --out cv

    Example: adawac crossval store --config acdc-unet --epochs 50 --test fold --jobs 2 --out cv

    Example: adawac crossval store --folds 5 --out cv --shard $SLURM_ARRAY_TASK_ID/5

    Example: adawac predict cv/model scans --out predictions
    """
    base = options.base()
    resolved = options.on_top_of(base, data)
    if resolved.data.split != base.data.split:
        raise ConfigError("Expected no data.split, since the folds are the split, but got one. Leave it out.")
    _check_before_torch(resolved, folds=True)
    wrong = None if known is None else _read_ids(known)
    from adawac.cli.display import Overview
    from adawac.reproduction.crossvalidation import crossval as cross_validate

    with Overview("" if as_json else "Folds") as overview:
        outcome = cross_validate(
            resolved,
            out,
            folds=folds,
            test=test,
            convention=convention,
            pictures=pictures,
            jobs=jobs,
            **vars(machines),
            watch=overview,
        )
    found = None
    if wrong is not None and outcome.evaluation is not None:
        from adawac.report.label_errors import measure_ranking

        found = measure_ranking([suspect.id for suspect in outcome.suspects], wrong)
    if as_json:
        print_json({**outcome.to_dict(), "known": found})
    else:
        _show_crossval(outcome, found)
    return 1 if outcome.failures else 0


def _read_ids(path: Path) -> list[str]:
    """Return the lines of a file that hold something."""
    with reading(lambda reason: ConfigError(f"Expected ids of samples in {path}, but got: {reason}. Check the path.")):
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _show_crossval(outcome: "CrossValidation", found: dict[str, Any] | None) -> None:
    """Print the pooled table, the plainest suspects, and what was written; or what failed."""
    from adawac.evaluation.tables import to_tables

    for job, failure in outcome.failures.items():
        print_text(printable(f"{job.name}: {failure.reason}\n  {job.log}\n"))
    if outcome.failures:
        print_text(f"{len(outcome.failures)} folds failed. The same command tries them again.\n")
    elif outcome.waiting:
        print_text(f"This share is done; {outcome.waiting} folds of other shards are not. The last one ends it.\n")
    if outcome.evaluation is None:
        return
    for table in to_tables([outcome.evaluation])[: len(outcome.evaluation.metrics)]:
        print_table(table.header, table.rows, title=table.title, notes=table.notes)
    print_text(f"\n{len(outcome.suspects)} labels to look at{'; the first ones:' if outcome.suspects else '.'}\n")
    rows = [(f"{suspect.score:.2f}", suspect.case, str(suspect.slice), suspect.why) for suspect in outcome.suspects[:5]]
    if rows:
        print_table(("score", "case", "slice", "why"), rows, text_columns=(1, 3))
    if found is not None:
        print_text(
            f"\n{found['wrong']} labels are known to be wrong: average precision {found['average_precision']:.2f}\n"
        )
        numbers = [(str(top["count"]), f"{top['precision']:.2f}", f"{top['recall']:.2f}") for top in found["first"]]
        print_table(("first", "precision", "recall"), numbers)
    print_text("".join(printable(f"{path}\n") for path in outcome.files))


def _check_before_torch(
    config: "TrainConfig", out: Path | None = None, *, resume: bool = False, folds: bool = False
) -> None:
    """Refuse names, files and folders that cannot be used, before torch is imported, which takes seconds."""
    from adawac.data.parallel import max_ranks
    from adawac.data.splits import check_spec, resolve_split
    from adawac.data.store import Store
    from adawac.runs.writer import check_folder

    config.check_names()
    config.hardware.check_devices(max_ranks())  # no machine has more GPUs than processors
    check_spec(config.data.split)
    store = None if config.data.store is None else Store(config.data.store)  # says what is wrong with it
    if out is not None:
        check_folder(out, resume)
    if store is not None and not folds:
        store.samples(table=resolve_split(store.table, config.data.split, config.seed))  # or nobody trains


def _train(config: "TrainConfig", out: Path, resume: bool, as_json: bool) -> None:
    import shlex

    import torch.distributed as dist

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
    if dist.is_available() and dist.is_initialized() and dist.get_rank():  # torchrun has all ranks come here
        return
    if as_json:
        print_json(standing(run))
    else:
        print_text(f"Done: {printable(str(out))}\n")


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
    changes: Changes = (),
    as_json: AsJson = False,
) -> None:
    """Measure training on this machine: slices/s, memory, share of time per part.

    Example: adawac bench

    Example: adawac bench store --model transunet --set hardware.precision=bf16
    """
    from adawac.cli.display import bar
    from adawac.config import TrainConfig, assignments, override

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
    config = override(TrainConfig(), settings)
    _check_before_torch(config)
    from adawac.train.benchmark import measure

    with bar() as watch:
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
    peak = "unknown" if measured["peak_gib"] is None else f"{measured['peak_gib']:.2f} GiB"
    console.print(f"peak memory {peak}, first step after {measured['seconds_to_first_step']:.1f} s")
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
    out: Annotated[
        Path | None, Parameter(help="Folder for the data, the runs and the report: demo, or demo-pictures.")
    ] = None,
    pictures: Annotated[
        bool, Parameter(help="Draw pictures of surfaces, nine in ten without a defect, instead of abdomens.")
    ] = False,
    epochs: Annotated[int | None, Parameter(help="Passes over the training samples; by default 40.")] = None,
    seed: Annotated[int, Parameter(help="Draws the network, the views and the order of the samples.")] = 1,
    as_json: AsJson = False,
) -> None:
    """See the whole tool work: draw data, train three methods, score them, write a report.

    Abdomens are drawn, most of their slices without a label, and the same small network is trained on them three times:
    by one augmented view (baseline), by two (pair), and by two that AdaWAC weighs. The test patients come from another
    hospital. Minutes on two cores. Ctrl-C stops, the same command goes on.

    Example: adawac demo

    Example: adawac demo --seed 2 --out demo

    Example: adawac demo --pictures
    """
    from dataclasses import replace

    from adawac.cli.display import DemoDisplay
    from adawac.reproduction import demo as demos

    display = DemoDisplay(quiet=as_json)
    try:
        settings = demos.PICTURES_DEMO if pictures else demos.DEMO
        settings = settings if epochs is None else replace(settings, epochs=epochs)
        folder = out or Path("demo-pictures" if pictures else "demo")
        outcome = demos.demonstrate(folder, seed=seed, demo=settings, watch=display, note=display.part)
    finally:
        display.close()
    if as_json:
        print_json(outcome)
        return
    methods = list(outcome["dice"])
    rows = [
        (organ, *(f"{100 * outcome['classes'][method][organ]:.1f}" for method in methods))
        for organ in outcome["classes"][methods[0]]
    ]
    rows.append(("mean", *(f"{100 * mean:.1f}" for mean in outcome["dice"].values())))
    print_table(("DSC on pictures with it" if pictures else "DSC on the test patients", *methods), rows)
    if outcome["detections"]:
        print_table(("Test pictures", *methods), _detections(outcome["detections"], methods))
    words = _PICTURE_WORDS if pictures else _SCAN_WORDS
    plain_console().print(printable(_CLOSING.format(**outcome, **words)), soft_wrap=True)


def _detections(detections: "Mapping[str, Mapping[str, int]]", methods: list[str]) -> list[tuple[str, ...]]:
    """Return a row of pictures with a defect in which nothing was found, and one of clean ones with a false alarm."""
    return [
        (text, *(f"{row[wrong]} of {row[wrong] + row[right]}" for row in map(detections.__getitem__, methods)))
        for text, wrong, right in (
            ("with a defect, nothing found", "misses", "hits"),
            ("clean, with a false alarm", "false_alarms", "clear"),
        )
    ]


_SCAN_WORDS = {
    "what": "scans",
    "given": "SCANS",
    "prepare": "adawac prepare nifti SCANS store",
    "formats": "NIfTI, DICOM, ACDC, Synapse",
}
_PICTURE_WORDS = {
    "what": "pictures",
    "given": "FOLDER",
    "prepare": "adawac prepare pictures FOLDER store",
    "formats": "PNG, JPEG, BMP, TIFF, with masks",
}
_CLOSING = """
{outcome} One seed is an anecdote: --seed draws another.

Open {report}: how β moved on every slice (the atlas, sorted by foreground), and what the networks found.

With your own {what}:
  adawac diagnose {given:<43}are they label-sparse? which method suits them?
  {prepare:<59}{formats}
  adawac train store --split stratified --out runs/adawac    then: adawac evaluate, report, predict"""
