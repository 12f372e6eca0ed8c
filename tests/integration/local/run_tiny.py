"""`kubealign run` with the roles of these tests."""

import argparse
import asyncio
import fcntl
import sys
import termios
from pathlib import Path

from local_job import driver, prepare, rollout, trainer
from rich.console import Console

from kubealign.local.display.terminal import display_for
from kubealign.local.errors import RunRefused
from kubealign.local.runner.run_jobs import run_jobs
from kubealign.spec.loading.loader import load_jobs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", type=Path)
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument(
        "--terminal", action="store_true", help="The standard input is this session's terminal."
    )
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    if options.terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    try:
        return asyncio.run(
            run_jobs(
                load_jobs(options.jobs, {}, options.set),
                options.runs_dir,
                options.fresh,
                display_for(Console()),
                processes=lambda job: [prepare(), trainer(), rollout(), driver("trainer", "rollout")],
                preload=lambda jobs: ["grpc", "grpc_health.v1.health", "redis"],
            )
        )
    except RunRefused as refusal:
        print(refusal, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
