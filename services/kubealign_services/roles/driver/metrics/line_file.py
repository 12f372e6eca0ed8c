"""Append-only file of lines that survives the death of its writer."""

from pathlib import Path


def append_lines(path: Path, lines: str) -> None:
    """Append complete lines. A partial last line is terminated first, so that it does not corrupt the next
    line.
    """
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(lines.encode())
