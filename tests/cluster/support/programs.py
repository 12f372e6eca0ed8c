"""Programs of a test cluster: their Go modules and their build folders."""

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[1] / "tools"
KUBERNETES_VERSION = "1.35.4"
#: Older versions that the operator supports, which `make test-versions` builds, by the module's folder.
OLDER_VERSIONS = {"kubernetes-1.33": "1.33.13", "kubernetes-1.34": "1.34.4"}


def build_flags(version: str) -> tuple[str, ...]:
    """Return the flags of `go build` for programs of a Kubernetes version.

    Debug information costs compile time, and no test reads it. Without optimisation as well, the build would
    be cheaper by a fifth, but helm and kubectl would need two to four times the processor time for each
    command."""
    major, minor, _ = version.split(".")
    # Without the version the API server calls itself v0.0.0, and clients misbehave.
    named = (("gitVersion", f"v{version}"), ("gitMajor", major), ("gitMinor", minor))
    symbols = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in named)
    return ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", f"-s -w {symbols}")


class Level(StrEnum):
    """Purpose of the programs, in the order of the builds; a machine without root needs no `node`.

    The integration tests use `storage`, which is built first. `network-policy` and `helm3` are built for the
    long tests alone, the older Kubernetes versions for `make test-versions`."""

    STORAGE = "storage"
    CONTROL_PLANE = "control-plane"
    CHART = "chart"
    QUEUE = "queue"
    NODE = "node"
    NETWORK_POLICY = "network-policy"
    HELM3 = "helm3"
    KUBERNETES_1_33 = "kubernetes-1.33"
    KUBERNETES_1_34 = "kubernetes-1.34"


@dataclass(frozen=True)
class Program:
    """One binary, built from `package` inside a Go module of tools/.

    `module` is the folder of that module, relative to tools/. `manifests` are folders of the package's Go
    module; the build copies them into `manifest_folder`, because it removes Go's module cache."""

    name: str
    level: Level
    package: str
    module: str = field(default=".", repr=False)
    manifests: tuple[str, ...] = field(default=(), repr=False)


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
    Program("helm3", Level.HELM3, "helm.sh/helm/v3/cmd/helm", module="helm3"),
    Program(
        "kueue",
        Level.QUEUE,
        "sigs.k8s.io/kueue/cmd/kueue",
        module="kueue",
        manifests=("config/components/crd", "config/components/webhook"),
    ),
    Program(
        "kube-router",
        Level.NETWORK_POLICY,
        "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        module="kube-router",
    ),
    Program("versitygw", Level.STORAGE, "github.com/versity/versitygw/cmd/versitygw", module="versitygw"),
    *(
        Program(name, Level(module), f"k8s.io/kubernetes/cmd/{name}", module=module)
        for module in OLDER_VERSIONS
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
)


class ProgramMissing(Exception):
    """A program of the cluster has not been built on this machine."""


def cache_folder() -> Path:
    """Return the cache of built programs: $KUBEALIGN_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("KUBEALIGN_CACHE"):
        return Path(chosen) / "cluster"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kubealign" / "cluster"


def _module_files(module: Path) -> Iterator[Path]:
    """Yield the files of one Go module. A folder below with a go.mod of its own is another module."""
    for file in sorted(module.rglob("*")):
        if file.name not in ("go.mod", "go.sum") and file.suffix != ".go":
            continue
        owner = next(folder for folder in file.parents if (folder / "go.mod").is_file())
        if owner == module:
            yield file


def module_flags(module: str) -> tuple[str, ...]:
    """Return the flags of `go build` for a module's programs."""
    return build_flags(OLDER_VERSIONS.get(module, KUBERNETES_VERSION))


def digest(module: str = ".") -> str:
    """Return a digest of all inputs of a module's programs: the files of the module and the build flags."""
    programs = tuple(program for program in PROGRAMS if program.module == module)
    state = hashlib.sha256(repr((module_flags(module), programs)).encode())
    folder = TOOLS / module
    for file in _module_files(folder):
        state.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return state.hexdigest()[:16]


def build_folder(module: str = ".") -> Path:
    """Return the folder for programs of the current state of a module, built or not."""
    return cache_folder() / digest(module) / "bin"


def _module(name: str) -> str:
    return next((program.module for program in PROGRAMS if program.name == name), ".")


def find(name: str) -> Path | None:
    """Return the program `name` from KUBEBUILDER_ASSETS, else from the build folder; None if in neither."""
    folders = [build_folder(_module(name))]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folders.insert(0, Path(assets))
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def program(name: str) -> Path:
    """Return the program `name` like `find`. Raises ProgramMissing, whose text names the remedy."""
    if path := find(name):
        return path
    raise ProgramMissing(
        f"{name} is neither in KUBEBUILDER_ASSETS ({os.environ.get('KUBEBUILDER_ASSETS', 'not set')}) "
        f"nor in {build_folder(_module(name))}: run `make cluster-tools`"
    )


def manifest_folder(binary: Path) -> Path:
    """Return the folder of the manifests that were built together with a binary."""
    return binary.with_name(f"{binary.name}-manifests")


def missing(level: Level) -> list[Program]:
    """Return the programs of a level that are still to be built.

    KUBEBUILDER_ASSETS stands for the programs of the current version alone."""
    return [program for program in PROGRAMS if program.level == level and not _exists(program)]


def _exists(program: Program) -> bool:
    if program.module in OLDER_VERSIONS:
        return os.access(build_folder(program.module) / program.name, os.X_OK)
    return find(program.name) is not None


if __name__ == "__main__":
    # The folder of an older version's programs, for KUBEBUILDER_ASSETS.
    print(build_folder(Level(sys.argv[1])))
