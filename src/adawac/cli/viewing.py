"""`adawac view`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from adawac.cli.main import SEE, app, print_text, printable


@app.command(group=SEE)
def view(
    scan: Annotated[Path, Parameter(help="A NIfTI file, or the folder of a DICOM series.")],
    /,
    *,
    labels: Annotated[
        tuple[Path, ...], Parameter(help="Label maps to lay over it.", consume_multiple=True, show_default=False)
    ] = (),
    port: Annotated[int, Parameter(help="Where to listen; 0 takes a free port.")] = 0,
    no_browser: Annotated[
        bool, Parameter(name="--no-browser", help="Print the address and open nothing.", show_default=False)
    ] = False,
) -> None:
    """Look at a scan with its label maps in the browser: three planes and 3D.

    It runs until Ctrl-C, on this computer alone and without a network; the files are not changed.

    Example: adawac view scan.nii.gz --labels truth.nii.gz prediction.nii.gz
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
