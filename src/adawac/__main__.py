"""`python -m adawac`, and the command `adawac`."""

import sys


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from adawac.cli import run
    except KeyboardInterrupt:  # so early that nobody else could say it
        sys.stderr.write("adawac: Interrupted.\n")
        return 130
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
