"""The control groups of this process, versions 1 and 2 (cgroups(7)), where a container's limits stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMBERSHIPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ControlGroup:
    """folder: where its files lie. version: 1 or 2, which name them differently."""

    folder: Path
    version: int

    def read(self, name: str) -> str | None:
        """What a file of it says; None: it has no such file, as the root of version 2 has no limits."""
        try:
            return (self.folder / name).read_text().strip()
        except FileNotFoundError:
            return None


def control_groups(
    controller: str, memberships: Path = _MEMBERSHIPS, root: Path = _ROOT
) -> Iterator[ControlGroup]:
    """Those that this controller may have for this process, from its own up to the root; none where the
    system has no control groups. Each limits what is below it too, so the tightest of them counts."""
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
        # In a container the path may be the host's, of folders that are not there, while its own group is
        # mounted as the root.
        folder = base / path.lstrip("/")
        while folder.is_relative_to(base):
            yield ControlGroup(folder, version)
            folder = folder.parent
