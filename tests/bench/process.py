"""Runs one side of a comparison as a process and measures its resource usage."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.bench.watch import Usage, Watch

ROOT = Path(__file__).parents[2]


def run(
    command: Sequence[str],
    output: Path,
    env: Mapping[str, str],
    timeout: float,
    name: str,
    group_of: Callable[[dict[int, int]], dict[int, str]] | None = None,
) -> Usage:
    """Run a command from the repository's root and return its usage.

    group_of: see `Watch`; None: all processes are in the group `name`. Raises RuntimeError with the end of
    the output if the command fails, or has not ended after `timeout` seconds."""
    with (
        output.open("w") as file,
        subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(env), cwd=ROOT
        ) as process,
    ):
        try:
            with Watch(process.pid, group_of or (lambda parents: dict.fromkeys(parents, name))) as usage:
                code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} had not ended after {timeout:g} s:\n{_end(output)}") from None
        finally:
            process.kill()
    if code != 0:
        raise RuntimeError(f"{name} ended with code {code}:\n{_end(output)}")
    return usage


def _end(output: Path) -> str:
    return output.read_text(errors="replace")[-4000:]
