"""Folders of wheels for image builds without a network."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .buildah import run

_DOWNLOAD_SECONDS = 1800.0
# pip accepts wheels only for the listed versions of the C library, newest first, legacy tags included. All of
# these wheels install on the base image's Debian.
_NEWEST = 28
_LIBRARIES = (*(f"_2_{minor}" for minor in range(_NEWEST, 4, -1)), "2014", "2010", "1")


def download(requirements: Sequence[Path], python: str, folder: Path) -> None:
    """Download the wheels of locked requirements, for Linux and the Python version `python`, such as 3.11.2.

    Hashes are verified. Raises BuildFailed."""
    folder.mkdir(parents=True)
    machine = os.uname().machine
    for file in requirements:
        # pip evaluates environment markers for the Python that runs pip, so uv resolves the markers first.
        plain = folder / f".{file.name}"
        uv = str(Path(sys.executable).parent / "uv")
        target = ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_{_NEWEST}"]
        resolve = [uv, "pip", "compile", str(file), "--no-deps", "--generate-hashes", "--no-header", *target]
        run([*resolve, "--quiet", "--output-file", str(plain)], timeout=_DOWNLOAD_SECONDS)
        tag = "".join(python.split(".")[:2])
        accepted = [part for abi in (f"cp{tag}", "abi3", "none") for part in ("--abi", abi)]
        for library in _LIBRARIES:
            accepted += ["--platform", f"manylinux{library}_{machine}"]
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
        chosen = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", tag, *accepted]
        run([*fetch, *chosen, "--dest", str(folder), "-r", str(plain)], timeout=_DOWNLOAD_SECONDS)
        plain.unlink()
