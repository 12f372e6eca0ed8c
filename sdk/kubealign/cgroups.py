"""The cgroups (versions 1 and 2, cgroups(7)) of this process, which hold a container's resource limits."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMBERSHIPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    """One cgroup: its folder and its version (1 or 2), which determines the names of its files."""

    folder: Path
    version: int

    def read(self, name: str) -> str | None:
        """Return the content of a file; None: no such file, since the root of version 2 has no limits."""
        try:
            return (self.folder / name).read_text().strip()
        except FileNotFoundError:
            return None


def iter_cgroups(controller: str, memberships: Path = _MEMBERSHIPS, root: Path = _ROOT) -> Iterator[Cgroup]:
    """Yield the cgroups of a controller for this process, from its own up to the root; none on a system
    without cgroups.

    Each cgroup also limits its descendants, so the smallest limit applies.
    """
    if not memberships.is_file():
        return
    for line in memberships.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, version = root, 2
        elif controller in controllers.split(","):
            base, version = root / controller, 1
        else:
            continue
        # In a container the path may be the host's, whose folders do not exist there, while the container's
        # own cgroup is mounted as the root.
        folder = base / path.lstrip("/")
        while folder.is_relative_to(base):
            yield Cgroup(folder, version)
            folder = folder.parent
