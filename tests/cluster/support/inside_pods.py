"""Processes of pods on this machine, identified by control group and command."""

from collections.abc import Iterator
from pathlib import Path


def pids(pod_uid: str, program: str) -> list[int]:
    """Return the host process ids of a pod's processes that run `program`."""
    return [
        int(process.name) for process in _processes(pod_uid) if Path(_command(process)[0]).name == program
    ]


def _processes(pod_uid: str) -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and f"/pod{pod_uid}/" in _read(process / "cgroup"):
            yield process


def _command(process: Path) -> list[str]:
    return _read(process / "cmdline").split("\0")


def _read(file: Path) -> str:
    """Read a file of /proc; empty where the process has ended."""
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
