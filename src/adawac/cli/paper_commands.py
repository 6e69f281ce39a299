"""`adawac reproduce` and `theory`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from adawac.cli.shell import (
    PAPER,
    AddressOption,
    AsJson,
    app,
    plain_console,
    print_json,
    print_table,
    print_text,
    printable,
)
from adawac.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from adawac.reproduction import Reproduction


@app.command(group=PAPER)
def reproduce(
    name: Annotated[
        str | None, Parameter(help="A table or figure, such as table-1, or a YAML file with a grid.")
    ] = None,
    /,
    *,
    data: Annotated[Path | None, Parameter(help="The prepared store; not needed with --quick.")] = None,
    out: Annotated[Path | None, Parameter(help="Folder for the runs and the table.")] = None,
    engine: Annotated[Literal["local", "ray"], Parameter(help="Where the runs run.")] = "local",
    address: AddressOption = None,
    jobs: Annotated[int | None, Parameter(help="Runs at a time; by default one for each GPU, or 1.")] = None,
    preset: Annotated[
        Literal["paper", "official", "both"] | None, Parameter(help="As the text says, or as released.")
    ] = None,
    changes: Annotated[
        tuple[str, ...], Parameter(name="--set", help="A setting of all runs, as path=value; may be repeated.")
    ] = (),
    only: Annotated[tuple[str, ...], Parameter(help="Rows of these names, with * for anything; may be repeated.")] = (),
    seconds: Annotated[
        float | None,
        Parameter(help="After this time begin nothing, save and stop what runs; the same command goes on."),
    ] = None,
    collect: Annotated[
        tuple[Path, ...],
        Parameter(help="Run nothing: add the runs below this folder to the grid's results file; may be repeated."),
    ] = (),
    quick: Annotated[bool, Parameter(help="The same grid on the phantom, small: not the paper's numbers.")] = False,
    phantom: Annotated[
        bool, Parameter(help="Take a store of phantom scans for a table of the paper: not its numbers.")
    ] = False,
    list_: Annotated[bool, Parameter(name="--list", help="List the tables and figures.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run a table or figure of the paper and set our numbers beside the paper's.

    Finished runs are kept and interrupted ones go on: give the same command again. Tables in the same --out share runs.

    Example: adawac reproduce --list

    Example: adawac reproduce table-1 --data store --out paper --jobs 4

    Example: adawac reproduce table-2 --quick --out trial

    Example: adawac reproduce my-grid.yaml --data store --out mine --engine ray --address auto

    Example: adawac reproduce my-grid.yaml --collect copied-runs
    """
    if list_:
        return _print_list(as_json)
    if name is not None and collect:
        return _collect(name, collect, as_json)
    if name is None or out is None:
        lacking = "a table or figure" if name is None else "a folder for the runs"
        hint = "See `adawac reproduce --list`." if name is None else "Give --out."
        raise ConfigError(f"Expected {lacking}, but got none. {hint}")
    from adawac.cli.display import Overview
    from adawac.config import assignments
    from adawac.reproduction import reproduce as run

    presets = ("paper", "official") if preset == "both" else (preset,) if preset else ()
    with Overview("" if as_json else "Runs") as overview:
        found = run(
            name,
            out,
            data=data,
            quick=quick,
            engine=engine,
            address=address,
            jobs=jobs,
            presets=presets,
            changes=assignments(changes),
            only=only,
            seconds=seconds,
            phantom=phantom,
            watch=overview,
        )
    if as_json:
        from adawac.reproduction.comparison_files import to_dict

        print_json(
            {
                **to_dict(found.comparison, found.failures),
                "files": [str(path) for path in found.files],
                "left": found.left,
            }
        )
    else:
        _show(found)
    return 1 if found.failures else 0


def _collect(name: str, folders: tuple[Path, ...], as_json: bool) -> int:
    from adawac.reproduction import load_grid
    from adawac.reproduction.collected_results import collect

    _, grid = load_grid(name)
    names = collect(grid, folders)
    if as_json:
        print_json({"results": grid.results, "collected": names})
    else:
        listed = f": {', '.join(names)}" if names else ""
        print_text(printable(f"{len(names)} runs into {grid.results}{listed}") + "\n")
    return 0


def _print_list(as_json: bool) -> int:
    from adawac.reproduction import grid_names

    names = grid_names()
    if as_json:
        print_json(names)
    else:
        print_text("".join(f"{name:<10}{title}\n" for name, title in names.items()))
    return 0


def _show(found: "Reproduction") -> None:
    """Print the means over classes, the order of the methods, and what failed; the files have every column."""
    from adawac.reproduction.comparison_files import to_tables

    console = plain_console()
    means = [column.name for column in found.comparison.grid.named_columns if column.class_name is None]
    for table in to_tables(found.comparison, means) if means else ():
        text_columns = range(len(table.header))  # of a number, too, the mean and ± stand on the left
        print_table(table.header, table.rows, title=table.title, notes=table.notes, text_columns=text_columns)
        console.print()
    for path in found.files:
        console.print(printable(str(path)), soft_wrap=True)
    if found.left:
        console.print(f"\nTime is up with {found.left} runs to go. The same command goes on with them.")
    if found.failures:
        _show_failures(console, found)


def _show_failures(console: "Console", found: "Reproduction") -> None:
    reasons: dict[str, list[str]] = {}
    for job, outcome in found.failures.items():
        reasons.setdefault(outcome.reason, []).append(str(job.log))
    count = len(found.failures)
    console.print(f"\n{count} run{'s' if count > 1 else ''} failed. The same command tries again.")
    for reason, logs in reasons.items():
        console.print(printable(reason), soft_wrap=True)
        for log in logs:
            console.print(printable(f"  {log}"), soft_wrap=True)


@app.command(group=PAPER)
def theory(
    *,
    out: Annotated[Path, Parameter(help="Folder for the figures and numbers.")],
    quick: Annotated[bool, Parameter(help="Smaller grids: seconds, not a minute.")] = False,
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
