"""The tests of `tensorrt_llm_contract.py`, in TensorRT-LLM's environment."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.tensorrt_llm_environment import ABSENT, TENSORRT_LLM_PYTHON

pytestmark = [pytest.mark.timeout(1200), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]


def test_tensorrt_llm_keeps_the_contract_of_rollout_engines(tmp_path: Path) -> None:
    report, contract = tmp_path / "report.xml", Path(__file__).with_name("tensorrt_llm_contract.py")
    ended = subprocess.run(
        [
            TENSORRT_LLM_PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            contract,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1140,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    outcomes = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert outcomes == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 12
