"""The project's own images, built from their Containerfiles on a local base image: `python -m ... [NAME...]`.

Bases, wheels and archives are kept in the cache of the cluster's programs, by a digest of their inputs.
The services' image holds gigabytes, so it is built, tried and not kept."""

import argparse
import fcntl
import hashlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .buildah import Buildah, BuildFailed, BuildImpossible, require_builds, run
from .programs import cache_folder
from .wheelhouse import download

CHECKOUT = Path(__file__).resolve().parents[3]
OPERATOR = "kubealign-operator:test"
_BASE = "localhost/kubealign-base:test"
_SUITE = "bookworm"
_PACKAGES = ("python3", "python3-venv", "bubblewrap", "libseccomp2")
_LEFT_OUT = ("doc", "man", "locale", "info")
_BASE_SECONDS = 900.0
# A user of a namespace's range on OpenShift, unknown to the image, in the root group.
_ARBITRARY_USER = "1000690000:0"
_WHEELS = "/wheelhouse"
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "sdk", "operator", "services")


@dataclass(frozen=True)
class Recipe:
    """One image of the project: its folder in images/, and commands that prove that the image works."""

    name: str
    trials: tuple[tuple[str, ...], ...]

    @property
    def containerfile(self) -> Path:
        return CHECKOUT / "images" / self.name / "Containerfile"

    @property
    def requirements(self) -> tuple[Path, ...]:
        return tuple(CHECKOUT / "requirements" / f"{name}.txt" for name in ("build", self.name))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("operator", (("python", "-m", "kubealign_operator", "--help"),)),
        Recipe(
            "dashboard",
            (("python", "-c", "import kubealign_dashboard.__main__"),),
        ),
        Recipe(
            "nats",
            (
                ("python", "-c", "import kubealign_services.messaging.jetstream.nats_server"),
                ("python", "-c", "import kubealign_services.messaging.jetstream.nats_probe"),
                ("nats-server", "--version"),
            ),
        ),
        Recipe(
            "services",
            (
                (
                    "python",
                    "-c",
                    "import kubealign_services.roles.trainer.main, kubealign_services.roles.rollout.main",
                ),
                ("nats-server", "--version"),
            ),
        ),
    )
}


def operator_image() -> Path:
    """Return an archive with the image OPERATOR, built when its sources changed.

    Raises BuildImpossible where images cannot be built, and BuildFailed."""
    require_builds()
    recipe = RECIPES["operator"]
    with _alone(recipe.name):
        archive = _folder() / f"operator-{_digest(_inputs(recipe))}.tar"
        if not archive.exists():
            with _built(recipe) as buildah:
                unfinished = archive.with_suffix(".unfinished")
                unfinished.unlink(missing_ok=True)
                buildah.save(_name(recipe), unfinished, f"docker.io/library/{OPERATOR}")
                unfinished.rename(archive)
            _forget("operator-*.tar", archive)
        return archive


def try_image(recipe: Recipe) -> None:
    """Build an image and run its trials in it, as the image's user and as an arbitrary one.

    Raises like operator_image."""
    require_builds()
    with _alone(recipe.name), _built(recipe) as buildah:
        for command in recipe.trials:
            for user in (None, _ARBITRARY_USER):
                buildah.run(_name(recipe), *command, user=user)


def _folder() -> Path:
    return cache_folder() / "images"


def _name(recipe: Recipe) -> str:
    return f"localhost/kubealign-{recipe.name}:test"


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Hold the build lock of one artifact; a second build waits, and then finds the first one's result."""
    _folder().mkdir(parents=True, exist_ok=True)
    with (_folder() / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _built(recipe: Recipe) -> Iterator[Buildah]:
    """Provide an image store that holds the image."""
    with _alone("base"):
        base = _base()
    with Buildah(_folder() / f"store-{recipe.name}") as buildah:
        buildah.import_tar(base, _BASE)
        python = buildah.run(_BASE, "python3", "-c", "import platform; print(platform.python_version())")
        wheels = _wheels(recipe, python)
        arguments = {"BASE": _BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": _WHEELS}
        buildah.build(
            recipe.containerfile, CHECKOUT, _name(recipe), arguments=arguments, volumes={wheels: _WHEELS}
        )
        yield buildah


def _base() -> Path:
    """Return a tar of a small Debian with Python, built on first use."""
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    options = ["--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}", *excluded, _SUITE]
    archive = _folder() / f"base-{_digest([repr(options).encode()])}.tar"
    if not archive.exists():
        unfinished = archive.with_name(f"unfinished-{archive.name}")
        run(["mmdebstrap", *options, str(unfinished)], timeout=_BASE_SECONDS)
        unfinished.rename(archive)
    return archive


def _wheels(recipe: Recipe, python: str) -> Path:
    """Return a folder with every locked package of the image, for the base's Python."""
    locked = [file.read_bytes() for file in recipe.requirements]
    folder = _folder() / f"wheels-{recipe.name}-{_digest([python.encode(), *locked])}"
    if not folder.exists():
        unfinished = folder.with_name(f"unfinished-{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        download(recipe.requirements, python, unfinished)
        unfinished.rename(folder)
        _forget(f"wheels-{recipe.name}-*", folder)
    return folder


def _inputs(recipe: Recipe) -> Iterator[bytes]:
    """Yield every input of an image: packages, Containerfile, requirements and sources."""
    yield repr((_SUITE, _PACKAGES, _LEFT_OUT)).encode()
    files = [recipe.containerfile, *recipe.requirements]
    for source in _SOURCES:
        path = CHECKOUT / source
        files += [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        if "__pycache__" not in file.parts:
            yield str(file.relative_to(CHECKOUT)).encode()
            yield file.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()[:16]


def _forget(pattern: str, current: Path) -> None:
    """Remove the cached files that match `pattern`, except `current`: earlier checkouts left them behind."""
    for path in _folder().glob(pattern):
        if path != current:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the project's images on a local base, and try them.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}; default: all")
    names = parser.parse_args().names or list(RECIPES)
    if unknown := sorted(set(names) - set(RECIPES)):
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    for name in names:
        started = time.monotonic()
        try:
            try_image(RECIPES[name])
        except (BuildImpossible, BuildFailed) as failure:
            sys.exit(f"image {name}: {failure}")
        print(f"image {name}: built and tried in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
