"""`adawac demo`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import START, AsJson, app, plain_console, print_json, printable


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
    from adawac.demonstration import demonstrate

    console = plain_console(quiet=as_json)
    displays: list[Display] = []

    def watch() -> Display:
        for one in displays:
            one.close()
        displays.append(Display(quiet=as_json))
        return displays[-1]

    try:
        found = demonstrate(
            out, seed=seed, epochs=epochs, watch=watch, note=lambda text: console.print(printable(text), soft_wrap=True)
        )
    finally:
        for one in displays:
            one.close()
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    table = Table("method", "mean DSC on the test cases", box=None, header_style="bold")
    for method, dice in found["dice"].items():
        table.add_row(method, f"{100 * dice:.1f}")
    console.print(table)
    console.print(
        f"A large β marks label-dense slices in {found['beta_auc']:.0%} of all pairs of a dense and an empty one. One "
        "seed is an anecdote: --seed draws another."
    )
    console.print(printable(f"The report: {found['report']}"), soft_wrap=True)
