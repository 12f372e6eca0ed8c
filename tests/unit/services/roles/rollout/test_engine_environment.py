"""The Python environment in which a rollout worker runs its engine."""

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from kubealign.spec.sections.engines import Engine, TensorRTLLMEngineSpec, TorchEngineSpec, VllmEngineSpec
from kubealign_services.roles.rollout.engine_environment import find_engine_python

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed in this environment"),
]

VLLM = Engine(vllm=VllmEngineSpec())

WORKER = """
import os, sys

def main(argv):
    print(sys.prefix, argv, os.environ.get("OMP_NUM_THREADS"), hasattr(sys.modules["__main__"], "__file__"))
    return 7
"""

ENTER = """
import sys
from kubealign.spec.sections.engines import Engine, VllmEngineSpec
from kubealign_services.roles.rollout.engine_environment import enter_engine_environment

enter_engine_environment(Engine(vllm=VllmEngineSpec()), "worker", "settings.json", int(sys.argv[1]) or None)
print("returned")
"""


def environment(folder: Path) -> Path:
    """Create a Python environment without packages."""
    venv.create(folder, symlinks=True)
    return folder


def test_engines_of_kubealign_run_in_this_environment(tmp_path: Path) -> None:
    variables = {"KUBEALIGN_VLLM": str(environment(tmp_path / "vllm"))}
    assert find_engine_python(Engine(torch=TorchEngineSpec()), variables) is None


def test_an_environment_is_found_by_its_variable(tmp_path: Path) -> None:
    folder = environment(tmp_path / "any")
    assert find_engine_python(VLLM, {"KUBEALIGN_VLLM": str(folder)}) == folder / "bin/python"
    tensorrt = Engine(tensorrt_llm=TensorRTLLMEngineSpec())
    assert find_engine_python(tensorrt, {"KUBEALIGN_TENSORRT_LLM": str(folder)}) == folder / "bin/python"


def test_an_environment_is_found_within_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert find_engine_python(VLLM, {}) is None
    folder = environment(tmp_path / "vllm")
    assert find_engine_python(VLLM, {}) == folder / "bin/python"


def test_a_worker_in_the_environment_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reports an environment without the engine, instead of starting again and again."""
    folder = environment(tmp_path / "vllm")
    monkeypatch.setattr(sys, "prefix", str(folder))
    assert find_engine_python(VLLM, {"KUBEALIGN_VLLM": str(folder)}) is None


@pytest.mark.parametrize(("threads", "expected"), [(3, "3"), (0, "None")])
def test_the_process_continues_in_the_environment(tmp_path: Path, threads: int, expected: str) -> None:
    """The exit code is that of the worker's main function; the main module is not a file, which vLLM's own
    processes would import again.
    """
    folder = environment(tmp_path / "vllm")
    (tmp_path / "worker.py").write_text(WORKER)
    variables = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "KUBEALIGN_VLLM": str(folder)}
    ended = subprocess.run(
        [sys.executable, "-c", ENTER, str(threads)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stdout == f"{folder} ['worker', 'settings.json'] {expected} False\n", ended.stderr
    assert ended.returncode == 7
