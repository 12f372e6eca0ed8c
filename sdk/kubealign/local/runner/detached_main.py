"""Entry point of a detached runner, which outlives the process that started it: `python -m
kubealign.local.runner.detached_main`.

Imports little: multiprocessing imports a program's main module again in each process that it makes.
"""

import argparse
import sys
from pathlib import Path

_LOG_WIDTH = 10_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one job of a folder of runs, detached.")
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("name")
    parser.add_argument("--lock", type=int, required=True, help="File descriptor of the job's reserved lock.")
    options = parser.parse_args()
    return _run(options.runs_dir, options.name, options.lock)


def _run(runs_dir: Path, name: str, descriptor: int) -> int:
    import asyncio
    import time

    from rich.console import Console

    from kubealign.local.display.terminal import LinesDisplay
    from kubealign.local.runner.admission import run_directory
    from kubealign.local.runner.detached_job import run_detached

    lock = run_directory(runs_dir, name).lock()
    lock.adopt(descriptor)
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} runner of {name}\n")
    try:
        # No wrapping in the log: viewers wrap lines themselves.
        display = LinesDisplay(Console(width=_LOG_WIDTH, no_color=True))
        return asyncio.run(run_detached(runs_dir, name, display))
    finally:
        lock.release()


if __name__ == "__main__":
    sys.exit(main())
