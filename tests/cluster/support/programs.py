"""Programs of a test cluster: their Go modules and their build folder."""

import hashlib
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
KUBERNETES_VERSION = "1.35.4"
# Without the version the API server calls itself v0.0.0, and clients misbehave.
_VERSION_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (
        ("gitVersion", f"v{KUBERNETES_VERSION}"),
        ("gitMajor", KUBERNETES_VERSION.split(".")[0]),
        ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
    )
)
# Debug information costs compile time, and no test reads it. Without optimisation as well, the build would be
# cheaper by a fifth, but helm and kubectl would need two to four times the processor time for each command.
BUILD_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", f"-s -w {_VERSION_FLAGS}")


class Level(StrEnum):
    """Purpose of the programs; a machine without root needs no `node`."""

    CONTROL_PLANE = "control-plane"
    CHART = "chart"
    NODE = "node"


@dataclass(frozen=True)
class Program:
    """One binary, built from `package` inside the Go module of tools/."""

    name: str
    level: Level
    package: str


# Ordered by the amount of compiled code, most first: later programs reuse Go's cache.
PROGRAMS = (
    Program("kube-apiserver", Level.CONTROL_PLANE, "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("etcd", Level.CONTROL_PLANE, "go.etcd.io/etcd/server/v3"),
    Program(
        "kube-controller-manager",
        Level.CONTROL_PLANE,
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    Program("kube-scheduler", Level.CONTROL_PLANE, "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kubectl", Level.CONTROL_PLANE, "k8s.io/kubernetes/cmd/kubectl"),
    Program("kubelet", Level.NODE, "k8s.io/kubernetes/cmd/kubelet"),
    Program("kube-proxy", Level.NODE, "k8s.io/kubernetes/cmd/kube-proxy"),
    Program("coredns", Level.NODE, "./coredns"),
    Program("pause", Level.NODE, "./pause"),
    Program("helm", Level.CHART, "helm.sh/helm/v4/cmd/helm"),
)


class ProgramMissing(Exception):
    """A program of the cluster has not been built on this machine."""


def cache_folder() -> Path:
    """Return the cache of built programs: $KUBEALIGN_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("KUBEALIGN_CACHE"):
        return Path(chosen) / "cluster"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kubealign" / "cluster"


def digest() -> str:
    """Return a digest of all inputs of the programs: the files of the module and the build flags."""
    state = hashlib.sha256(repr((BUILD_FLAGS, PROGRAMS)).encode())
    for file in sorted(TOOLS.rglob("*")):
        if file.name in ("go.mod", "go.sum") or file.suffix == ".go":
            state.update(f"{file.relative_to(TOOLS)}\0".encode() + file.read_bytes() + b"\0")
    return state.hexdigest()[:16]


def build_folder() -> Path:
    """Return the folder for programs of the current state of the module, built or not."""
    return cache_folder() / digest() / "bin"


def find(name: str) -> Path | None:
    """Return the program `name` from KUBEBUILDER_ASSETS, else from the build folder; None if in neither."""
    folders = [build_folder()]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folders.insert(0, Path(assets))
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def program(name: str) -> Path:
    """Return the program `name` like `find`. Raises ProgramMissing, whose text names the remedy."""
    if path := find(name):
        return path
    raise ProgramMissing(
        f"{name} is neither in KUBEBUILDER_ASSETS ({os.environ.get('KUBEBUILDER_ASSETS', 'not set')}) "
        f"nor in {build_folder()}: run `make cluster-tools`"
    )


def missing(level: Level) -> list[Program]:
    """Return the programs of a level that are still to be built."""
    return [program for program in PROGRAMS if program.level == level and find(program.name) is None]
