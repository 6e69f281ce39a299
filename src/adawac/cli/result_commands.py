"""`adawac evaluate`, `score`, `figure`, `report`, `watch` and `view`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.shell import (
    EVALUATE,
    HERE,
    SEE,
    AsJson,
    Machines,
    app,
    as_typed,
    plain_console,
    print_json,
    print_table,
    print_text,
    printable,
)
from adawac.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adawac.evaluation import Evaluation, FolderScores
    from adawac.runs import Run

Metric = Literal["dice", "hd95", "assd", "surface-dice", "hd95-max-directed"]
OutOption = Annotated[Path | None, Parameter(help="Write all tables: a .csv, .json, .md, .tex or .html file.")]
FullOption = Annotated[bool, Parameter(help="Print all tables: intervals, slices, groups, each class.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """How label maps are scored, by `evaluate` and by `score`."""

    convention: Annotated[
        Literal["strict", "adawac", "transunet", "nnunet", "nan"], Parameter(help="What empty masks score.")
    ] = "strict"
    metrics: Annotated[tuple[Metric, ...], Parameter(help="What the tables show.", consume_multiple=True)] = (
        "dice",
        "hd95",
    )
    spacing: Annotated[
        Literal["mm", "voxel"] | None,
        Parameter(help="Unit of distances; mm, but voxel for adawac and transunet and where mm are not known."),
    ] = None
    tolerance: Annotated[float, Parameter(help="How far surfaces may be off for surface-dice, in that unit.")] = 1.0
    workers: Annotated[int | None, Parameter(help="Processes that score; 0 scores in the main one.")] = None


_STRICTLY = ScoringOptions()


@app.command(group=EVALUATE)
def evaluate(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders.")],
    /,
    *,
    data: Annotated[Path | None, Parameter(help="The prepared store, if it has moved.")] = None,
    part: Annotated[
        Literal["test", "val", "train"], Parameter(name="--split-part", help="Part of the runs' split.")
    ] = "test",
    checkpoint: Annotated[str | None, Parameter(help="Which weights; what the run selects by default.")] = None,
    scoring: ScoringOptions = _STRICTLY,
    tta: Annotated[bool, Parameter(help="Average over flipped images, too: four passes instead of one.")] = False,
    device: Annotated[str, Parameter(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        Literal["fp32", "bf16"], Parameter(help="Of the network, as for predict; fp32 is without TF32's rounding.")
    ] = "fp32",
    batch_size: Annotated[int | None, Parameter(help="Slices at a time.")] = None,
    gallery: Annotated[int, Parameter(help="The most slices to keep for figures, of each kind; 0 keeps none.")] = 100,
    out: OutOption = None,
    full: FullOption = False,
    as_json: AsJson = False,
) -> None:
    """Score runs on their test cases: Dice and HD95 per case and class, and runs against each other.

    Scores of each case, and slices to look at, are kept in the run folders.

    Of several runs, those that differ in the seed alone are grouped; each group is compared with the first one.

    Example: adawac evaluate runs/adawac --out table.md

    Example: adawac evaluate runs/baseline runs/adawac --convention adawac
    """
    from adawac.evaluation import evaluate as evaluate_runs
    from adawac.evaluation.tables import check_out, write_tables

    if out is not None:
        check_out(out)
    evaluations = evaluate_runs(
        runs,
        data=data,
        part=part,
        checkpoint=checkpoint,
        **vars(scoring),
        tta=tta,
        device=device,
        precision=precision,
        batch_size=batch_size,
        gallery=gallery,
    )
    if out is not None:
        write_tables(out, evaluations)
    if as_json:
        from adawac.evaluation.comparison import to_dict

        print_json(to_dict(evaluations))
    else:
        _show(evaluations, full)


@app.command(group=EVALUATE)
def score(
    truth: Annotated[Path, Parameter(help="Folder of the true label maps, or one of them.")],
    predictions: Annotated[tuple[Path, ...], Parameter(help="Folders of predicted label maps, or one of these.")],
    /,
    *,
    classes: Annotated[
        tuple[str, ...] | None,
        Parameter(help="Classes by label value: liver=1 vessel=2,3 background=0,5.", consume_multiple=True),
    ] = None,
    dataset_json: Annotated[
        Path | None, Parameter(help="nnU-Net's dataset.json, if it lies neither with the truth nor the predictions.")
    ] = None,
    ignore: Annotated[int | None, Parameter(help="Value of voxels in the truth that count nowhere.")] = None,
    scoring: ScoringOptions = _STRICTLY,
    axis: Annotated[int, Parameter(help="Voxel axis along which slices are cut: 0, 1 or 2.")] = 2,
    orientation: Annotated[str | None, Parameter(help="Turn voxel axes there first, such as RAS.")] = None,
    patient: Annotated[
        str | None, Parameter(help="Regular expression that finds the patient in a case's name.")
    ] = None,
    groups: Annotated[Path | None, Parameter(help="CSV file with the columns patient,group.")] = None,
    out: OutOption = None,
    cases: Annotated[Path | None, Parameter(help="Write the scores of each case and class to this .csv file.")] = None,
    parts: Annotated[
        Path | None, Parameter(help="Keep each case's scores in this folder: the same command goes on from them.")
    ] = None,
    machines: Machines = HERE,
    full: FullOption = False,
    as_json: AsJson = False,
) -> int:
    """Score label maps of any tool: NIfTI, NRRD, MetaImage, DICOM SEG or pictures, matched by their names.

    Several folders are compared with the first one, by patient. What cannot be scored is named, the rest is scored, and
    the exit code is then 1.

    Example: adawac score labelsTs predictions --out scores.html

    Example: adawac score labelsTs nnunet adawac --convention nnunet --cases cases.csv

    Example: adawac score truth.nii.gz prediction.nii.gz --classes liver=1 tumour=2

    Example: adawac score labelsTs predictions --parts parts --shard $SLURM_ARRAY_TASK_ID/8 --out scores.html
    """
    from adawac.cli.data_commands import classes_of
    from adawac.evaluation import score as score_folders
    from adawac.evaluation.folder_scores import write_case_scores
    from adawac.evaluation.tables import check_out, write_tables

    if out is not None:
        check_out(out)
    if cases is not None:
        check_out(cases, (".csv",))
    result = score_folders(
        truth,
        predictions,
        classes=classes_of(classes),
        dataset_json=dataset_json,
        ignore=ignore,
        **vars(scoring),
        axis=axis,
        orientation=orientation,
        patient=patient,
        groups=groups,
        parts=parts,
        **vars(machines),
    )
    if result.waiting:
        if as_json:
            print_json({"waiting": result.waiting})
        else:
            print_text(f"This share is scored; {result.waiting} cases of other shards are not. The last one ends it.\n")
        return 0
    if out is not None:
        write_tables(out, result.evaluations, result.faults)
    if cases is not None:
        write_case_scores(cases, result.evaluations)
    if as_json:
        print_json(_scores_as_dict(result))
    elif result.evaluations:
        _show_tables(result.evaluations, full)
    _tell_faults(result)
    return 1 if result.faults else 0


def _scores_as_dict(result: "FolderScores") -> dict[str, object]:
    from dataclasses import asdict

    from adawac.evaluation.comparison import to_dict

    return to_dict(result.evaluations) | {"faults": [asdict(fault) for fault in result.faults]}


_FAULTS = 20  # are said on the screen


def _tell_faults(result: "FolderScores") -> None:
    import sys

    for fault in result.faults[:_FAULTS]:
        where = ": ".join(filter(None, (fault.predictions or "truth", fault.case)))
        sys.stderr.write(printable(f"adawac: {where}: {as_typed(fault.message, 'score')}\n"))
    if result.faults[_FAULTS:]:
        sys.stderr.write(f"adawac: {len(result.faults) - _FAULTS} more; --out scores.json lists all.\n")
    if result.faults:
        scored = [f"{evaluation.label} {evaluation.num_cases}" for evaluation in result.evaluations]
        sys.stderr.write(printable(f"adawac: cases that were scored: {', '.join(scored) or 'none'}.\n"))


def _show(evaluations: "list[Evaluation]", full: bool) -> None:
    console = plain_console()
    _show_tables(evaluations, full)
    for evaluation in evaluations:
        path = f"{evaluation.run.folder}/scores/{evaluation.name}.csv"
        console.print(printable(f"Scores of each case: {path}"), soft_wrap=True)


def _show_tables(evaluations: "list[Evaluation]", full: bool) -> None:
    from adawac.evaluation.tables import to_tables

    console = plain_console()
    for table in to_tables(evaluations, full):
        print_table(table.header, table.rows, title=table.title, notes=table.notes)
        console.print()
    if not full:
        console.print("Intervals, slices, groups and the other tables: --full, or --out table.md")


@app.command(group=SEE)
def figure(
    run: Annotated[Path | None, Parameter(help="A run folder.")] = None,
    name: Annotated[str | None, Parameter(help="curves, weights, overlays, scores or separation.")] = None,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="The file: .png, .svg or .pdf. By default figures/NAME.png in the run folder.")
    ] = None,
    others: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--with", help="Further runs beside the first: overlays, scores, separation.", consume_multiple=True
        ),
    ] = (),
    theme: Annotated[Literal["light", "dark"], Parameter(help="Dark ink on white, or the reverse.")] = "light",
    width: Annotated[
        Literal["column", "text"] | float, Parameter(help="3.4 inches, 7 inches, or a number of inches.")
    ] = "column",
    case: Annotated[str | None, Parameter(help="curves: the case; by default one from empty to dense.")] = None,
    slices: Annotated[tuple[int, ...], Parameter(help="curves: slice numbers.", consume_multiple=True)] = (),
    scale: Annotated[
        Literal["log", "linear"] | None, Parameter(help="curves: the losses' scale; log by default.")
    ] = None,
    pick: Annotated[
        Literal["worst", "best", "median"] | None,
        Parameter(help="overlays: slices by their DSC in the first run; worst by default."),
    ] = None,
    count: Annotated[int | None, Parameter(help="overlays: how many slices; 3 by default.")] = None,
    ids: Annotated[
        tuple[str, ...], Parameter(name="--id", help="overlays: slices by their id.", consume_multiple=True)
    ] = (),
    gallery: Annotated[str | None, Parameter(help="overlays: which gallery of the run.")] = None,
    evaluation: Annotated[str | None, Parameter(help="scores: which evaluation of the run.")] = None,
    list_: Annotated[bool, Parameter(name="--list", help="Say what each figure shows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draw one of the paper's figures from a run folder; nothing else is needed.

    Example: adawac figure runs/adawac weights --out weights.svg --width text

    Example: adawac figure runs/baseline scores --with runs/adawac-1 runs/adawac-2 --out scores.pdf

    Example: adawac figure runs/adawac curves --case patient031_frame01 --slices 0 3 5 --theme dark
    """
    from adawac.figures import FIGURES, draw

    if list_:
        _print_list(dict(FIGURES), as_json)
        return
    if run is None or name is None:
        raise ConfigError(
            "Expected a run folder and the name of a figure, but got "
            f"{'neither' if run is None else f'only {run}'}. See `adawac figure --list`."
        )
    options = {
        "case": case,
        "slices": slices or None,
        "scale": scale,
        "pick": pick,
        "count": count,
        "ids": ids or None,
        "gallery": gallery,
        "evaluation": evaluation,
    }
    path = draw(name, [run, *others], out, theme=theme, width=width, **options)
    if as_json:
        print_json({"figure": name, "file": str(path)})
    else:
        print_text(f"{printable(str(path))}\n")


def _print_list(figures: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(figures)
        return
    for name, summary in figures.items():
        print_text(f"{name:<12}{summary}\n")


_INTERRUPTED = 3


@app.command(group=SEE)
def report(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders; the first is what others are compared with.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The HTML file.")] = Path("report.html"),
    pictures: Annotated[int, Parameter(help="Slices of the galleries to include at most; suspects come first.")] = 100,
    overwrite: Annotated[bool, Parameter(help="Replace a file that is not an earlier report of these runs.")] = False,
) -> None:
    """Write a report of one or several runs: one HTML file that works offline.

    Scores side by side, the weights atlas, samples to check for label errors, curves, and how to repeat it. A run that
    goes on, was interrupted or lost some files gives what it has. The file holds images and names from the data.

    Example: adawac report runs/baseline runs/adawac --out report.html
    """
    from adawac.report import write_report

    path = write_report(runs, out, pictures=pictures, overwrite=overwrite)
    print_text(f"{printable(str(path))}: {path.stat().st_size / 1e6:.1f} MB\n")


@app.command(group=SEE)
def watch(
    run: Annotated[Path, Parameter(help="A run folder.")],
    /,
    *,
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 5.0,
    once: Annotated[bool, Parameter(help="Show how the run stands and return.")] = False,
    wait: Annotated[bool, Parameter(help="Wait for a run that has not begun.")] = False,
    page: Annotated[Path | None, Parameter(help="Also keep a report up to date in this file.")] = None,
    overwrite: Annotated[
        bool, Parameter(help="Replace a file that is not a report of this run with the page.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Follow a run while it trains: progress, curves, and where β sends the samples.

    It ends with the run: exit code 0 if that finished, 3 if it was interrupted or its process died. Ctrl-C ends the
    watching, not the run. Where there is no terminal, it prints one line an epoch.

    Example: adawac watch runs/adawac

    Example: adawac watch runs/adawac --page report.html --every 30

    Example: adawac watch runs/adawac --once --json
    """
    from adawac.report import follow
    from adawac.runs import Run

    looks: Iterator[Run] = iter([Run(run)]) if once else follow(run, every=every, wait=wait)
    if wait and not once and not as_json and not run.exists():
        print_text(f"Waiting for {printable(str(run))} …\n")
    if page is not None:
        looks = _keep_page(looks, page, every, overwrite)
    status = _print_last(looks) if as_json else _show_page(looks, printable(str(run)))
    return _INTERRUPTED if status == "interrupted" else 0


def _keep_page(looks: "Iterator[Run]", page: Path, every: float, overwrite: bool) -> "Iterator[Run]":
    from adawac.report import watch_page

    for look in looks:
        watch_page(look, page, every=every, overwrite=overwrite)
        yield look


def _print_last(looks: "Iterator[Run]") -> str:
    """Print the last look at the run as JSON, and return how it stood then."""
    from collections import deque

    from adawac.cli.display import standing

    last = deque(looks, maxlen=1).pop()
    print_json(standing(last))
    return last.status


def _show_page(looks: "Iterator[Run]", title: str) -> str:
    """Show each look at the run, and return how it stood at the last one."""
    from contextlib import nullcontext

    from rich.live import Live

    from adawac.report.terminal import draw_run, list_epochs

    console = plain_console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    status, epoch = "", 0
    with live or nullcontext():
        for look in looks:
            if live is not None:
                live.update(draw_run(look, console, title), refresh=True)
            else:
                for line in list_epochs(look, epoch):
                    console.print(line, soft_wrap=True)
            status, epoch = look.status, max(look.epoch, epoch)
    console.print(f"{title}: {status}, epoch {epoch}", soft_wrap=True)
    return status


@app.command(group=SEE)
def view(
    scan: Annotated[Path, Parameter(help="A NIfTI file, a picture, or the folder of a DICOM series.")],
    /,
    *,
    labels: Annotated[tuple[Path, ...], Parameter(help="Label maps to lay over it.", consume_multiple=True)] = (),
    port: Annotated[int, Parameter(help="Where to listen; 0 takes a free port.")] = 0,
    no_browser: Annotated[bool, Parameter(name="--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """Look at a scan or a picture with its label maps in the browser: three planes and 3D.

    It runs until Ctrl-C, on this computer alone and without a network; the files are not changed.

    Example: adawac view scan.nii.gz --labels truth.nii.gz prediction.nii.gz

    Example: adawac view photo.jpg --labels masks/photo.png
    """
    import sys

    from adawac.viewer import serve

    with serve(scan, labels, port=port) as viewer:
        for note in viewer.notes:
            sys.stderr.write(printable(f"adawac: {note}\n"))
        print_text(f"{viewer.url}\nOnly this computer can open it. Press Ctrl-C to end.\n")
        sys.stdout.flush()
        try:
            if not no_browser:
                viewer.open_browser()
            viewer.wait()
        except KeyboardInterrupt:
            print_text("Closed.\n")
