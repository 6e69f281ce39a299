"""`adawac evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.main import EVALUATE, AsJson, app, plain_console, print_json, printable

if TYPE_CHECKING:
    from rich.console import Console

    from adawac.evaluation import Evaluation
    from adawac.evaluation.tables import Table

Metric = Literal["dice", "hd95", "assd", "surface-dice", "hd95-max-directed"]


@app.command(group=EVALUATE)
def evaluate(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders.")],
    /,
    *,
    data: Annotated[Path | None, Parameter(help="The prepared store, if it has moved.")] = None,
    split_part: Annotated[Literal["test", "val", "train"], Parameter(help="Part of the runs' split.")] = "test",
    checkpoint: Annotated[str | None, Parameter(help="Which weights; what the run selects by default.")] = None,
    convention: Annotated[
        Literal["strict", "adawac", "transunet", "nan"], Parameter(help="What empty masks score.")
    ] = "strict",
    metrics: Annotated[tuple[Metric, ...], Parameter(help="What the tables show.", consume_multiple=True)] = (
        "dice",
        "hd95",
    ),
    spacing: Annotated[
        Literal["mm", "voxel"] | None,
        Parameter(help="Unit of distances; mm, but voxel for adawac and transunet and where mm are not known."),
    ] = None,
    tolerance: Annotated[float, Parameter(help="How far surfaces may be off for surface-dice, in that unit.")] = 1.0,
    tta: Annotated[
        bool, Parameter(help="Average over flipped images, too: four passes instead of one.", show_default=False)
    ] = False,
    device: Annotated[str, Parameter(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], Parameter(help="Of the network; auto is bf16 on a GPU, else fp32.")
    ] = "auto",
    batch_size: Annotated[int | None, Parameter(help="Slices at a time.")] = None,
    workers: Annotated[int | None, Parameter(help="Processes that score; 0 scores in the main one.")] = None,
    gallery: Annotated[int, Parameter(help="The most slices to keep for figures, of each kind; 0 keeps none.")] = 100,
    out: Annotated[Path | None, Parameter(help="Write the tables: a .csv, .json, .md or .tex file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Score runs on their test cases: Dice and HD95 per case and class, and runs against each other.

    Scores of each case, and slices to look at, are kept in the run folders.

    Of several runs, those that differ in the seed alone are grouped; each group is compared with the first one.

    Example: adawac evaluate runs/adawac --out table.md

    Example: adawac evaluate runs/baseline runs/adawac --convention adawac
    """
    from adawac.evaluation import evaluate as score
    from adawac.evaluation.files import check_out, write_tables

    if out is not None:
        check_out(out)
    found = score(
        runs,
        data=data,
        part=split_part,
        checkpoint=checkpoint,
        convention=convention,
        metrics=metrics,
        spacing=spacing,
        tolerance=tolerance,
        tta=tta,
        device=device,
        precision=precision,
        batch_size=batch_size,
        workers=workers,
        gallery=gallery,
    )
    if out is not None:
        write_tables(out, found)
    if as_json:
        from adawac.evaluation.comparison import to_dict

        print_json(to_dict(found))
    else:
        _show(found)


def _show(evaluations: "list[Evaluation]") -> None:
    from adawac.evaluation.tables import to_tables

    console = plain_console()
    for table in to_tables(evaluations):
        _print(console, table)
    for one in evaluations:
        console.print(printable(f"Scores of each case: {one.run.folder}/scores/{one.name}.csv"), soft_wrap=True)


def _print(console: "Console", table: "Table") -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(printable(table.title)), title_justify="left", box=None, header_style="bold")
    for place, heading in enumerate(table.header):
        shown.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    console.print(shown)
    for note in table.notes:
        console.print(Text(printable(note)), soft_wrap=True)
    console.print()
