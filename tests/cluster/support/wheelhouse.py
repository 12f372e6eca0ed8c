"""Folders of wheels, so that an image is built without a network."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .buildah import run

_DOWNLOAD_SECONDS = 1800.0
# pip takes a wheel for just the versions of the C library that it is told, the old names included; newest
# first. Every one of them installs on the base image's Debian.
_NEWEST = 28
_LIBRARIES = (*(f"_2_{minor}" for minor in range(_NEWEST, 4, -1)), "2014", "2010", "1")


def download(requirements: Sequence[Path], python: str, folder: Path) -> None:
    """Download what locked requirements name, for Linux and the Python version `python`, such as 3.11.2.

    Hashes are checked. Raises BuildFailed."""
    folder.mkdir(parents=True)
    machine = os.uname().machine
    for file in requirements:
        # pip judges the conditions of a requirement by the Python that runs it: they are resolved first.
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
