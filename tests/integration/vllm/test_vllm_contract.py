"""The tests of `vllm_contract.py`, in vLLM's environment."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.vllm_environment import ABSENT, VLLM_PYTHON

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

CONTRACT = Path(__file__).with_name("vllm_contract.py")


def test_vllm_keeps_the_contract_of_rollout_engines(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    ended = subprocess.run(
        [VLLM_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", CONTRACT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-20_000:]
    [suite] = ElementTree.parse(report).getroot().iter("testsuite")
    outcomes = {name: int(suite.attrib[name]) for name in ("failures", "errors", "skipped")}
    assert outcomes == {"failures": 0, "errors": 0, "skipped": 0}
    assert int(suite.attrib["tests"]) >= 14
