"""Control groups as files, written by hand."""

from pathlib import Path


def write_group(folder: Path, **files: str) -> None:
    """Files of a group, __ in a name for its dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def write_memberships(path: Path, *lines: str) -> Path:
    """What /proc/self/cgroup says."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
