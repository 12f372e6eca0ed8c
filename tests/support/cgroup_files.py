"""Writes cgroup files for tests."""

from pathlib import Path


def write_group(folder: Path, **files: str) -> None:
    """Write the files of a control group. `__` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def write_memberships(path: Path, *lines: str) -> Path:
    """Write a file in the format of /proc/self/cgroup."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
