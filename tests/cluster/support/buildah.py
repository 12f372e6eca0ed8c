"""Image builds with buildah: one image store in a folder, without a daemon or a registry."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from .daemon import plain_environment

_COMMANDS = ("buildah", "mmdebstrap")
_BUILD_SECONDS = 3000.0
# At low priority beside the unit tests a commit of 20 seconds takes some minutes.
_SHORT_SECONDS = 1200.0
_OUTPUT_TAIL = 4000


class BuildImpossible(Exception):
    """Images cannot be built on this machine; the text names everything that is missing."""


class BuildFailed(Exception):
    """A step of a build failed; the text has the command and the end of its output."""


def missing_for_builds() -> list[str]:
    """Return the requirements of image builds that this machine lacks, one phrase each."""
    lacking = [f"the package {command}" for command in _COMMANDS if shutil.which(command) is None]
    if os.geteuid() != 0:
        lacking.append(f"root (this is user {os.geteuid()})")
    return lacking


def require_builds() -> None:
    """Check that images can be built. Raises BuildImpossible otherwise."""
    if lacking := missing_for_builds():
        raise BuildImpossible(f"building images needs {', '.join(lacking)}")


def run(command: list[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output. Raises BuildFailed on failure or after `timeout` seconds."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise BuildFailed(f"{' '.join(command)}: not done after {timeout:g} s") from late
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-_OUTPUT_TAIL:]}")
    return done.stdout


class Buildah:
    """A context manager: an image store in `folder`, removed at the end.

    One process at a time may use the folder; leftovers of an interrupted process are removed first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Isolation by chroot needs no kernel namespaces, so builds work in a container too.
        self._environment = {**plain_environment(), "BUILDAH_ISOLATION": "chroot", "HOME": str(folder)}

    def __enter__(self) -> Self:
        if self._folder.exists():
            self._remove()
        self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def __call__(self, *arguments: str, timeout: float = _SHORT_SECONDS) -> str:
        """Run `buildah ARGUMENTS` and return its output. Raises BuildFailed."""
        store = ["--storage-driver", "overlay", "--root", str(self._folder / "store")]
        command = ["buildah", *store, "--runroot", str(self._folder / "run"), *arguments]
        return run(command, timeout=timeout, environment=self._environment).strip()

    def import_tar(self, archive: Path, name: str) -> None:
        """Make an image called `name` of the files in a tar."""
        container = self("from", "scratch")
        self("add", "--quiet", container, str(archive), "/")
        self("commit", "--quiet", "--rm", container, name)

    def build(
        self,
        containerfile: Path,
        context: Path,
        name: str,
        *,
        arguments: Mapping[str, str],
        volumes: Mapping[Path, str],
    ) -> None:
        """Build an image called `name`; `volumes`: folder of this machine -> where RUN steps see it."""
        options = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        for source, inside in volumes.items():
            options += ["--volume", f"{source}:{inside}:ro"]
        where = ["-f", str(containerfile), "-t", name, str(context)]
        self("build", "--quiet", *options, *where, timeout=_BUILD_SECONDS)

    def run(self, name: str, *command: str, user: str | None = None) -> str:
        """Run a command in a container of the image and return its output.

        Args:
            user: UID:GID; None: the image's own user.
        """
        container = self("from", "--pull-never", name)
        try:
            options = [] if user is None else ["--user", user]
            return self("run", *options, container, "--", *command)
        finally:
            self("rm", container)

    def save(self, name: str, archive: Path, reference: str) -> None:
        """Write the image as an archive that `ctr images import` takes, under the name `reference`."""
        self("push", "--quiet", name, f"docker-archive:{archive}:{reference}", timeout=_BUILD_SECONDS)

    def _remove(self) -> None:
        # buildah unmounts its containers; a folder that is still mounted cannot be removed.
        self("rm", "--all")
        shutil.rmtree(self._folder)
