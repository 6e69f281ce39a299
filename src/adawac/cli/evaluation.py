"""`adawac evaluate`."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from adawac.cli.main import EVALUATE, AsJson, app, not_built


@app.command(group=EVALUATE)
@not_built
def evaluate(
    runs: Annotated[tuple[Path, ...], Parameter(help="Run folders.")],
    /,
    *,
    convention: Annotated[
        Literal["strict", "adawac", "transunet", "nan"], Parameter(help="What empty masks score.")
    ] = "strict",
    as_json: AsJson = False,
) -> None:
    """Score runs on their test cases: Dice and HD95 per case and class, and runs against each other.

    Example: adawac evaluate runs/baseline runs/adawac --convention adawac
    """
