"""`python -m adawac`, and the command `adawac`."""

import atexit
import signal
import sys


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from adawac.cli import run
    except KeyboardInterrupt:  # so early that nobody else could say it
        sys.stderr.write("adawac: Interrupted.\n")
        return 130
    try:
        return run(sys.argv[1:])
    finally:  # Ctrl-C while libraries clear up ends the process, without their tracebacks
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
