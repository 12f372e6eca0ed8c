"""A file of lines that only grows, whoever was killed while writing it."""

from pathlib import Path


def append(path: Path, lines: str) -> None:
    """Append whole lines. A last line that was left half is ended first: it costs itself, not the next."""
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(lines.encode())
