"""`adawac demo`."""

from typing import Annotated, Any

from cyclopts import Parameter

from adawac.cli.main import START, AsJson, app, print_json

_BARS = "▁▂▃▄▅▆▇█"
_ROWS = {"beta": "β", "ell_ce": "CE", "reg_ac": "ACR"}


@app.command(group=START)
def demo(
    *,
    epochs: Annotated[int, Parameter(help="Epochs to go through.")] = 30,
    seed: Annotated[int, Parameter(help="Draws the losses.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Watch β separate label-sparse from label-dense samples, on drawn losses.

    So far this is all it does: no network is trained. The losses of 200 samples are drawn (cross-entropy falls fast
    where there is nothing to segment, slowly where there is; consistency is much alike for all) and pass through the
    weights of Algorithm 1 as the library has them.

    Example: adawac demo --epochs 50
    """
    from adawac.cli.synthetic import separate

    result = separate(epochs=epochs, seed=seed)
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    epochs = len(result["label_dense"]["beta"])
    table = Table(title=f"{result['samples']} samples, η_β = {result['eta_beta']:g}", title_justify="left")
    for heading in ("", "", f"mean over epochs 1 to {epochs}", "first", "last"):
        table.add_column(heading, justify="right" if heading in ("first", "last") else "left", no_wrap=True)
    groups = {name: result[name.replace("-", "_")] for name in ("label-sparse", "label-dense")}
    highest = max(value for group in groups.values() for field in ("ell_ce", "reg_ac") for value in group[field])
    for field, symbol in _ROWS.items():
        for name, group in groups.items():
            values, top = group[field], 1.0 if field == "beta" else highest
            table.add_row(symbol, name, _sparkline(values, top), f"{values[0]:.2f}", f"{values[-1]:.2f}")
        table.add_section()
    console = Console()
    console.print(table)
    console.print(
        f"On the right side of ½: {result['separated']:.0%} of the samples (β > ½ if label-dense, < ½ if label-sparse)."
    )
    console.print("So far this is all the demo does: the losses were drawn, no network was trained.", style="bold")


def _sparkline(values: list[float], top: float, width: int = 40) -> str:
    count = min(width, len(values))
    chosen = [values[round(place * (len(values) - 1) / max(1, count - 1))] for place in range(count)]
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in chosen)
