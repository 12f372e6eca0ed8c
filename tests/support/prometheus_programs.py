"""Prometheus and promtool: installed ones, else those of Debian's package, unpacked into the cache."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = "prometheus"
_DOWNLOAD_SECONDS = 120
_UNPACK_SECONDS = 60


class PrometheusMissing(Exception):
    """Prometheus is neither installed nor downloadable; the text says why."""


@dataclass(frozen=True)
class PrometheusPrograms:
    """Paths of the two programs."""

    server: Path
    promtool: Path


@cache
def prometheus_programs() -> PrometheusPrograms:
    """Return the programs. Downloads Debian's package once: installing it would start a service.

    Raises PrometheusMissing.
    """
    server, promtool = shutil.which("prometheus"), shutil.which("promtool")
    if server and promtool:
        return PrometheusPrograms(Path(server), Path(promtool))
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # Parallel test processes download once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        unpacked = folder / "unpacked"
        if not unpacked.exists():
            _download(folder, unpacked)
    return PrometheusPrograms(unpacked / "usr/bin/prometheus", unpacked / "usr/bin/promtool")


def _cache_folder() -> Path:
    """Return $KUBEALIGN_CACHE/prometheus, else the one in the user's cache folder."""
    if chosen := os.environ.get("KUBEALIGN_CACHE"):
        return Path(chosen) / "prometheus"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kubealign" / "prometheus"


def _download(folder: Path, unpacked: Path) -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise PrometheusMissing(
                f"prometheus is not on the PATH, nor is {tool}, which downloads Debian's package"
            )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target = Path(scratch) / "unpacked"
        _run(["apt-get", "download", _PACKAGE], Path(scratch), _DOWNLOAD_SECONDS)
        [package] = Path(scratch).glob("*.deb")
        _run(["dpkg", "-x", str(package), str(target)], Path(scratch), _UNPACK_SECONDS)
        target.rename(unpacked)


def _run(command: list[str], folder: Path, seconds: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PrometheusMissing(f"{' '.join(command)} took longer than {seconds:g} s") from error
    if done.returncode:
        raise PrometheusMissing(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
