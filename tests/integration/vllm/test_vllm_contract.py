"""The tests of `vllm_contract.py` and `vllm_native_adapters_contract.py`, in vLLM's environment."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.vllm_environment import ABSENT, VLLM_PYTHON

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]


@pytest.mark.parametrize(("module", "tests"), [("vllm_contract", 14), ("vllm_native_adapters_contract", 16)])
def test_vllm_keeps_the_contract_of_rollout_engines(module: str, tests: int, tmp_path: Path) -> None:
    report, contract = tmp_path / "report.xml", Path(__file__).with_name(f"{module}.py")
    ended = subprocess.run(
        [VLLM_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", contract],
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
    assert int(suite.attrib["tests"]) >= tests
