"""Build the programs of the test cluster: `python -m tests.cluster.support.build [LEVEL...]`.

The operator's image comes last, where nodes can run and images can be built.

Programs that exist already are left alone. An interrupted build continues at the program where it stopped;
two concurrent builds wait for each other."""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import buildah
from .built_images import operator_image
from .programs import (
    TOOLS,
    Level,
    Program,
    build_folder,
    cache_folder,
    manifest_folder,
    missing,
    module_flags,
)
from .requirements import missing_for_a_node, usable_levels
from .toolchain import NoGo, find_go

_DEADLINE_SECONDS = 3600


class BuildFailed(Exception):
    """Go did not build a program; the text has Go's output."""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the build lock of this machine; a second build waits for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go_environment(private: Path) -> dict[str, str]:
    """Return Go's environment, with caches below `private` unless the user named folders for them.

    The private caches hold gigabytes, and are removed after the build."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    # Go makes its module cache read-only, which could not be removed.
    environment["GOFLAGS"] = "-modcacherw -mod=readonly -buildvcs=false"
    # The compiler collects its own garbage less often: a sixth less processor time.
    environment.setdefault("GOGC", "400")
    environment.setdefault("GOCACHE", str(private / "build"))
    environment.setdefault("GOMODCACHE", str(private / "modules"))
    return environment


def _run(command: Sequence[str], module: Path, environment: dict[str, str]) -> str:
    """Run Go in the folder of a module and return its output."""
    done = subprocess.run(
        command,
        cwd=module,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def _copy_manifests(program: Program, go: Path, environment: dict[str, str], target: Path) -> None:
    """Copy the program's manifests out of the Go module that has its package."""
    shutil.rmtree(target, ignore_errors=True)
    command = [str(go), "list", "-f", "{{.Module.Dir}}", program.package]
    source = Path(_run(command, TOOLS / program.module, environment).strip())
    for folder in program.manifests:
        shutil.copytree(source / folder, target / folder)


def _build(program: Program, go: Path, environment: dict[str, str], folder: Path) -> None:
    """Build one program into `folder`. A failed build leaves no program there."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{program.name}.unfinished"
    command = [str(go), "build", *module_flags(program.module), "-o", str(unfinished), program.package]
    _run(command, TOOLS / program.module, environment)
    # The binary comes last: its presence means that the program is complete.
    if program.manifests:
        _copy_manifests(program, go, environment, manifest_folder(folder / program.name))
    unfinished.rename(folder / program.name)


def build(levels: Sequence[Level]) -> None:
    """Build the missing programs of the levels, and print a line for each.

    Where all exist, no other build is waited for. Raises NoGo where no Go is new enough, and BuildFailed with
    Go's output."""
    if not any(missing(level) for level in levels):
        print(f"cluster tools: all there, in {cache_folder()}")
        return
    with _alone(cache_folder()):
        needed = [program for level in levels for program in missing(level)]
        if not needed:
            print(f"cluster tools: all there, in {cache_folder()}")
            return
        go = find_go()
        private = cache_folder() / "go"
        environment = _go_environment(private)
        print(f"cluster tools: {len(needed)} to build with {go} into {cache_folder()}", flush=True)
        for program in needed:
            started = time.monotonic()
            _build(program, go, environment, build_folder(program.module))
            print(f"  {program.name:<24} {time.monotonic() - started:5.0f} s", flush=True)
        shutil.rmtree(private, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the programs of the test cluster.")
    parser.add_argument(
        "levels", nargs="*", metavar="LEVEL", help=f"of {', '.join(Level)}; default: what can run"
    )
    if lacking := missing_for_a_node():
        print(f"cluster tools: no real node on this machine: it needs {', '.join(lacking)}")
    levels = [Level(level) for level in parser.parse_args().levels] or usable_levels()
    try:
        build(levels)
        if Level.NODE in levels and not buildah.missing_for_builds():
            print(f"cluster tools: the operator's image is {operator_image()}")
    except (NoGo, BuildFailed, buildah.BuildFailed) as failure:
        sys.exit(f"cluster tools: {failure}")


if __name__ == "__main__":
    main()
