"""Command line of modules that generate a file of the project: `python -m MODULE [--write PATH]`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def print_or_write(render: Callable[[], str]) -> None:
    """Write the generated text to stdout, or to the file given by --write."""
    parser = argparse.ArgumentParser(description=print_or_write.__doc__)
    parser.add_argument("--write", type=Path, metavar="PATH")
    path: Path | None = parser.parse_args().write
    if path is None:
        sys.stdout.write(render())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(), encoding="utf-8")
