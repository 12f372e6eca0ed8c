"""The tests of `vllm_contract.py` and `vllm_native_adapters_contract.py`, in vLLM's environment."""

from pathlib import Path

import pytest

from support.engine_contract.other_environment import check_contract
from support.vllm_environment import ABSENT, VLLM_PYTHON

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]


@pytest.mark.parametrize(("module", "tests"), [("vllm_contract", 14), ("vllm_native_adapters_contract", 16)])
def test_vllm_keeps_the_contract_of_rollout_engines(module: str, tests: int, tmp_path: Path) -> None:
    check_contract(VLLM_PYTHON, Path(__file__).with_name(f"{module}.py"), tmp_path, 580, tests)
