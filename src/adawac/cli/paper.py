"""`adawac theory`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import PAPER, AsJson, app, print_json, print_text, printable


@app.command(group=PAPER)
def theory(
    *,
    out: Annotated[Path, Parameter(help="Folder for the figures and numbers.")],
    quick: Annotated[bool, Parameter(help="Smaller grids: seconds, not a minute.", show_default=False)] = False,
    seed: Annotated[int, Parameter(help="Draws the instances and the order of the samples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the saddle point and the convergence guarantee numerically.

    Writes six figures, and their numbers in theory.json; the documentation's page Theory explains them.

    Example: adawac theory --out theory
    """
    from adawac.cli.display import bar
    from adawac.theory import run

    with bar() as watch:
        numbers = run(out, quick=quick, seed=seed, watch=watch)
    if as_json:
        print_json(numbers)
    else:
        files = ", ".join(sorted(path.name for path in out.iterdir()))
        print_text(f"{printable(str(out))}: {files}\n")
