"""A rollout worker with TensorRT-LLM needs the packages of NVIDIA's image and the locked additions only."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support import limited_imports
from support.engine_contract.tiny_model import model, plain_logprobs, write_model
from support.limited_imports import import_names, normalised, with_requirements

ROOT = Path(__file__).parents[5]
_LOCK = ROOT / "requirements/tensorrt_llm.txt"
_OVERRIDES = ROOT / "requirements/tensorrt_llm_overrides.in"
_WORKER = ROOT / "tests/support/tensorrt_llm_worker.py"
#: Packages of NVIDIA's image that kubealign imports there.
IMAGE = ("numpy", "pyarrow", "safetensors", "tokenizers", "torch", "transformers")
#: Modules of transformers that version 4, which the image has, does not have.
NEW_MODULES = ("transformers.core_model_loading", "transformers.initialization")


def locked() -> set[str]:
    """Return the packages that the image gets."""
    lines = re.findall(r"^([a-z0-9-]+)==\S+(.*)\\$", _LOCK.read_text(), re.MULTILINE)
    return {name for name, marker in lines if "never" not in marker}


def test_the_image_keeps_its_own_packages() -> None:
    replaced = re.findall(r'^(\S+); sys_platform == "never"$', _OVERRIDES.read_text(), re.MULTILINE)
    assert set(IMAGE) <= set(replaced)
    assert not locked() & set(replaced)
    foreign = {name for name in locked() if name.startswith(("nvidia", "cuda", "torch", "triton"))}
    assert not foreign


def test_the_lock_has_the_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["tensorrt-llm"]
    names = {normalised(re.split(r"[<>=\[]", each)[0]) for each in extra}
    assert names <= locked()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_worker_generates_with_the_packages_of_its_environment(tmp_path: Path) -> None:
    folder: Any = write_model(tmp_path / "model")
    model(1).save_pretrained(folder)
    own = import_names({*IMAGE, *locked()})
    limits = {
        "installed": sorted(import_names(with_requirements([*IMAGE, *locked()])) | {"tensorrt_llm"}),
        "own": sorted(own | {"tensorrt_llm"}),
        "absent": NEW_MODULES,
    }
    # kubernetes and datasets are what a services environment has and this one has not.
    assert {"torch", "nats", "google"} <= own and not {"kubernetes", "datasets", "peft"} & own
    (tmp_path / "limits.json").write_text(json.dumps(limits))
    command = [sys.executable, limited_imports.__file__, tmp_path / "limits.json", _WORKER, folder]
    paths = [str(ROOT / name) for name in ("sdk", "services", "tests")]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sample = json.loads(done.stdout.splitlines()[-1])
    expected = plain_logprobs(1, [70, 71, 72], sample["tokens"])
    assert sample["logprobs"] == pytest.approx(expected, abs=1e-4)
