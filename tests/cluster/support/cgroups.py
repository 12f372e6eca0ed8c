"""Control groups of a node's pods, which no namespace removes."""

import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_DEADLINE_SECONDS = 20.0
_CONTROLLERS = Path("/proc/self/mountinfo")


class CgroupsLeft(Exception):
    """Control groups could not be removed: processes still run in them."""


def hierarchies() -> list[Path]:
    """Return the mounted trees: one with cgroup version 2 only, else one for each version 1 controller."""
    rows = [line.split() for line in _CONTROLLERS.read_text().splitlines()]
    return [Path(row[4]) for row in rows if row[row.index("-") + 1] in ("cgroup", "cgroup2")]


def make(name: str) -> None:
    """Make a group called `name` in every tree, and remove leftovers of a killed test first."""
    remove(name)
    for tree in hierarchies():
        (tree / name).mkdir(exist_ok=True)


def left(name: str) -> list[Path]:
    """Return the groups called `name` that exist."""
    return [tree / name for tree in hierarchies() if (tree / name).exists()]


def remove(name: str) -> None:
    """Remove the groups called `name` and their subgroups. Raises CgroupsLeft when processes stay in them."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while remaining := [group for top in left(name) for group in _below(top)]:
        for group in remaining:
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if time.monotonic() > deadline:
                    raise CgroupsLeft(f"{group} after {_DEADLINE_SECONDS:g} s: {error}") from error
        time.sleep(0.02)


def _below(top: Path) -> list[Path]:
    """Return `top` and every group in it, the deepest first."""
    inner = [path for path in top.rglob("*") if path.is_dir()]
    return [*sorted(inner, key=lambda path: len(path.parts), reverse=True), top]
