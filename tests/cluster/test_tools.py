"""Lookup and build of the programs of a test cluster."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.support import build, programs, toolchain
from cluster.support.build import BuildFailed
from cluster.support.programs import Level, Program, ProgramMissing
from cluster.support.requirements import usable_levels

_SMALL = Program("pause", Level.NODE, "./pause")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Copy of the Go module with one small program, and an empty cache."""
    copy = tmp_path / "tools"
    shutil.copytree(programs.TOOLS, copy)
    monkeypatch.setattr(programs, "TOOLS", copy)
    monkeypatch.setattr(build, "TOOLS", copy)
    monkeypatch.setattr(programs, "PROGRAMS", (_SMALL,))
    monkeypatch.setenv("KUBEALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return copy


@pytest.fixture
def go() -> Path:
    try:
        return toolchain.find_go()
    except toolchain.NoGo as reason:
        pytest.skip(str(reason))


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_kubebuilder_assets_take_precedence(
    tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = executable(programs.build_folder() / "etcd")
    assert programs.program("etcd") == built
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert programs.program("etcd") == built
    theirs = executable(tmp_path / "assets" / "etcd")
    assert programs.program("etcd") == theirs


def test_a_program_that_is_nowhere_is_named_with_the_remedy(tools: Path) -> None:
    with pytest.raises(ProgramMissing, match=r"kubectl is neither .* run `make cluster-tools`"):
        programs.program("kubectl")


def test_another_version_is_built_into_another_folder(tools: Path) -> None:
    before = programs.build_folder()
    module = tools / "go.mod"
    module.write_text(module.read_text().replace("helm/v4 v4.", "helm/v4 v4.99"))
    assert programs.build_folder() != before


def test_each_module_has_a_build_folder_of_its_own(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Program("kueue", Level.QUEUE, "sigs.k8s.io/kueue/cmd/kueue", module="kueue")
    kubernetes_folder = programs.build_folder()
    monkeypatch.setattr(programs, "PROGRAMS", (_SMALL, queue))
    kueue_folder = programs.build_folder("kueue")
    assert programs.build_folder() == kubernetes_folder
    built = executable(kueue_folder / "kueue")
    assert programs.program("kueue") == built
    module = tools / "kueue" / "go.mod"
    module.write_text(f"{module.read_text()}// Another version.\n")
    assert programs.build_folder() == kubernetes_folder
    assert programs.build_folder("kueue") != kueue_folder
    assert programs.missing(Level.QUEUE) == [queue]


def test_make_test_builds_no_program_of_the_long_tests() -> None:
    assert set(usable_levels()) - {Level.NODE} == {
        Level.STORAGE,
        Level.CONTROL_PLANE,
        Level.CHART,
        Level.QUEUE,
    }


def test_an_older_version_is_built_beside_the_current_one(
    tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = Program("kube-apiserver", Level.KUBERNETES_1_33, "x", module="kubernetes-1.33")
    monkeypatch.setattr(programs, "PROGRAMS", (replace(older, level=Level.CONTROL_PLANE, module="."), older))
    current = executable(programs.build_folder() / "kube-apiserver")
    assert programs.missing(Level.CONTROL_PLANE) == [] and programs.missing(Level.KUBERNETES_1_33) == [older]
    built = executable(programs.build_folder("kubernetes-1.33") / "kube-apiserver")
    assert programs.missing(Level.KUBERNETES_1_33) == []
    assert programs.program("kube-apiserver") == current
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(built.parent))
    assert programs.program("kube-apiserver") == built
    flags = programs.module_flags("kubernetes-1.33")[-1]
    assert "gitVersion=v1.33." in flags and "gitMinor=33" in flags


def test_the_manifests_of_a_program_are_built_with_it(
    tools: Path, go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interrupted build of the same version left this file.
    folder = programs.manifest_folder(programs.build_folder() / "pause")
    executable(folder / "coredns" / "unfinished.yaml")
    monkeypatch.setattr(programs, "PROGRAMS", (replace(_SMALL, manifests=("coredns",)),))
    build.build([Level.NODE])
    assert programs.manifest_folder(programs.program("pause")) == folder
    copied = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert copied == {Path("coredns/main.go"): (tools / "coredns" / "main.go").read_bytes()}


def test_missing_programs_are_built_once(tools: Path, go: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tools / "pause" / "main.go"
    good = source.read_text()
    source.write_text(good.replace("os.Signal", "os.Signals"))
    with pytest.raises(BuildFailed, match=r"undefined: os\.Signals"):
        build.build([Level.NODE])
    assert programs.missing(Level.NODE) == [_SMALL]
    source.write_text(good)
    build.build([Level.NODE])
    assert programs.missing(Level.NODE) == []
    capsys.readouterr()
    build.build([Level.NODE])
    assert "all there" in capsys.readouterr().out
    assert not (programs.cache_folder() / "go").exists(), "Go's own caches were to be removed"
