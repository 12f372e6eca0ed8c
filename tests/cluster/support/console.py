"""Commands of a documentation page, run in a shell as a reader would type them."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubealign.local.processes.parent_death import die_with_parent
from support.doc_blocks import blocks

from .daemon import plain_environment

_POLL_SECONDS = 0.2
_STOP_SECONDS = 20.0


class CommandWrong(Exception):
    """A command failed, or did not print what was expected; the text has its output."""


def page_commands(page: Path) -> list[str]:
    """Return the commands of a page's terminal sessions in order, without comments."""
    page_lines = []
    for block in blocks(page, "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.partition("  #")[0].strip()
            if command:
                page_lines.append(" ".join(command.split()))
    return page_lines


@dataclass
class Console:
    """A shell in `folder` that knows the variables that earlier commands set."""

    folder: Path
    variables: Mapping[str, str]
    paths: Sequence[Path]

    def __post_init__(self) -> None:
        self._settings: list[str] = []

    def remember(self, command: str) -> None:
        """Run a command that sets variables before each of the following commands."""
        self._settings.append(command)

    def run(self, command: str, seconds: float) -> str:
        """Run a command and return its output.

        Raises CommandWrong if it fails, TimeoutExpired after `seconds`."""
        with self._start(command) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            finally:
                process.kill()
        if process.returncode != 0:
            raise CommandWrong(f"{command}: exit {process.returncode}\n{output}")
        return output

    @contextmanager
    def watch(self, command: str, expected: str, seconds: float) -> Iterator[None]:
        """Run a command that goes on; enter when `expected` is in its output, and end it on exit.

        Raises CommandWrong if the text does not come in `seconds`."""
        log = self.folder / "watched.log"
        with log.open("w") as stdout, self._start(command, stdout.fileno()) as process:
            try:
                deadline = time.monotonic() + seconds
                while expected not in log.read_text():
                    if process.poll() is not None and expected not in log.read_text():
                        raise CommandWrong(f"{command}: exit {process.returncode}\n{log.read_text()}")
                    if time.monotonic() > deadline:
                        raise CommandWrong(
                            f"{command}: no {expected!r} within {seconds:.0f} s\n{log.read_text()}"
                        )
                    time.sleep(_POLL_SECONDS)
                yield
            finally:
                process.terminate()
                try:
                    process.wait(timeout=_STOP_SECONDS)
                finally:
                    process.kill()

    def _start(self, command: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        # The last command replaces the shell, so that a signal reaches it.
        *before, last = [*self._settings, command]
        script = "\n".join(["set -e", *before, last if "|" in last or "&&" in last else f"exec {last}"])
        return subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environment(),
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def _environment(self) -> dict[str, str]:
        inherited = plain_environment()
        path = os.pathsep.join([*map(str, self.paths), inherited.get("PATH", os.defpath)])
        return {**inherited, **self.variables, "PATH": path, "HOME": str(self.folder)}
