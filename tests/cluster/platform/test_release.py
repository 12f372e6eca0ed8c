"""The release: its chart names every image by digest. Builds, pushes and signatures are not run here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.support.helm import CHART, RELEASE, Helm, of_kind, pod_specs
from cluster.support.programs import find
from kubealign_operator.controller.config import load_config

ROOT = CHART.parents[1]
_SECONDS = 30
_DIGEST = "sha256:" + "0123456789abcdef" * 4


def released_images() -> list[str]:
    """Return the names of the images of a release: all but that on NVIDIA's image of TensorRT-LLM."""
    return sorted(folder.name for folder in (ROOT / "images").iterdir() if folder.name != "tensorrt-llm")


def pin(values: Path, *images: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "pin_chart.py"), str(values), *images]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "kubealign"))


@pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")
def test_the_released_chart_names_every_image_by_digest(chart: Path, tmp_path: Path) -> None:
    names = released_images()
    repositories = {name: f"registry.example:5000/ml/kubealign-{name}" for name in names}
    values = chart / "values.yaml"
    before = values.read_text()
    done = pin(values, *(f"{name}={repository}@{_DIGEST}" for name, repository in repositories.items()))
    assert done.returncode == 0, done.stderr
    # Only the lines of the images change: the comments of the values are their documentation.
    changes = [line for line in values.read_text().splitlines() if line not in before.splitlines()]
    assert all(re.match(r" +(repository|digest): ", line) for line in changes)

    text = Helm(tmp_path / "helm")("template", RELEASE, str(chart), "--set", "crds.install=false")
    objects = [item for item in yaml.safe_load_all(text) if item is not None]
    [config_map] = [
        item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == f"{RELEASE}-operator"
    ]
    (tmp_path / "config.yaml").write_text(config_map["data"]["config.yaml"])
    platform = load_config(tmp_path / "config.yaml").platform
    rendered = {pod["containers"][0]["image"] for pod in pod_specs(objects).values()}
    ours = {image for image in rendered if "redis" not in image} | {platform.image, platform.bus_image}
    # A job names the image of its workers with Triton or vLLM itself.
    named_by_jobs = {"triton", "vllm"}
    assert ours == {
        f"{repository}@{_DIGEST}" for name, repository in repositories.items() if name not in named_by_jobs
    }


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("operator=registry.example/operator:0.1.0", "must be NAME=REPOSITORY@sha256:DIGEST"),
        (f"trainer=registry.example/trainer@{_DIGEST}", "image trainer: the values have 0 blocks"),
    ],
)
def test_an_image_that_the_chart_cannot_name_is_refused(chart: Path, argument: str, message: str) -> None:
    before = (chart / "values.yaml").read_text()
    done = pin(chart / "values.yaml", argument)
    assert done.returncode != 0
    assert message in done.stderr
    assert (chart / "values.yaml").read_text() == before


def test_a_release_of_another_version_is_refused() -> None:
    command = [str(ROOT / ".ci" / "release"), "registry.example/ml", "9.9.9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 1
    assert "VERSION is 9.9.9, and appVersion" in done.stderr


def test_make_builds_every_image_that_a_release_pushes() -> None:
    command = ["make", "--dry-run", "images", "REGISTRY=registry.example/", "TAG=1", "BUILDER=docker"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, cwd=ROOT)
    built = re.findall(r"-t registry\.example/kubealign-([a-z]+):1 ", done.stdout)
    assert sorted(built) == released_images()
    assert built.index("services") < built.index("triton")


def test_a_release_pushes_the_images_that_make_builds() -> None:
    script = (ROOT / ".ci" / "release").read_text()
    [names] = re.findall(r"^images=\((.*)\)$", script, re.MULTILINE)
    assert names.split() == released_images()


def test_the_workflow_runs_the_script_and_may_sign() -> None:
    [job] = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if ".ci/release" in step.get("run", "")]
    assert job["permissions"]["id-token"] == "write"
