"""`adawac figure`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from adawac.cli.main import SEE, AsJson, app, print_json, print_text, printable
from adawac.errors import ConfigError


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
            name="--with",
            help="Further runs beside the first: overlays, scores, separation.",
            consume_multiple=True,
            show_default=False,
        ),
    ] = (),
    theme: Annotated[Literal["light", "dark"], Parameter(help="Dark ink on white, or the reverse.")] = "light",
    width: Annotated[
        Literal["column", "text"] | float, Parameter(help="3.4 inches, 7 inches, or a number of inches.")
    ] = "column",
    case: Annotated[str | None, Parameter(help="curves: the case; by default one from empty to dense.")] = None,
    slices: Annotated[
        tuple[int, ...], Parameter(help="curves: slice numbers.", consume_multiple=True, show_default=False)
    ] = (),
    scale: Annotated[
        Literal["log", "linear"] | None, Parameter(help="curves: the losses' scale; log by default.")
    ] = None,
    pick: Annotated[
        Literal["worst", "best", "median"] | None,
        Parameter(help="overlays: slices by their DSC in the first run; worst by default."),
    ] = None,
    count: Annotated[int | None, Parameter(help="overlays: how many slices; 3 by default.")] = None,
    ids: Annotated[
        tuple[str, ...],
        Parameter(name="--id", help="overlays: slices by their id.", consume_multiple=True, show_default=False),
    ] = (),
    gallery: Annotated[str | None, Parameter(help="overlays: which gallery of the run.")] = None,
    evaluation: Annotated[str | None, Parameter(help="scores: which evaluation of the run.")] = None,
    list_: Annotated[bool, Parameter(name="--list", help="Say what each figure shows.", show_default=False)] = False,
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
