"""Labels of people in labels.jsonl of a run directory. Each change is a further line."""

import fcntl
import os
from pathlib import Path

from kubealign.client.backends.local.json_lines import objects_after
from kubealign.human_labels import HumanLabel, parse_label
from kubealign.read_model import STREAM_START


def append_label(path: Path, label: HumanLabel) -> None:
    """Append a label, and return when it is on the disk. Processes may append concurrently."""
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        # A partial last line of a process that was killed must not swallow this one.
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.write(b"\n")
        file.write(label.to_json().encode(errors="replace") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_labels(path: Path) -> list[HumanLabel]:
    """Read all labels, oldest first; those of the same subject included."""
    labels = (parse_label(document) for _, document in objects_after(path, STREAM_START))
    return [label for label in labels if label is not None]
