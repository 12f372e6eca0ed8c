"""The tests of `tensorrt_llm_contract.py`, in TensorRT-LLM's environment."""

from pathlib import Path

import pytest

from support.engine_contract.other_environment import check_contract
from support.tensorrt_llm_environment import ABSENT, TENSORRT_LLM_PYTHON

pytestmark = [pytest.mark.timeout(1200), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]


def test_tensorrt_llm_keeps_the_contract_of_rollout_engines(tmp_path: Path) -> None:
    contract = Path(__file__).with_name("tensorrt_llm_contract.py")
    check_contract(TENSORRT_LLM_PYTHON, contract, tmp_path, 1140, 12)
