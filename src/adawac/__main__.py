"""`python -m adawac`, and the command `adawac`."""

import sys


def main() -> int:
    """Run the command line; return its exit code."""
    from adawac.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
