"""The Python environment with TensorRT-LLM beside that of the tests."""

import sys
from importlib.util import find_spec
from pathlib import Path

from kubealign_services.runtime.python_environments import environment_folder

_OWN = environment_folder("tensorrt-llm") / "bin" / "python"
#: The interpreter with TensorRT-LLM: this one, or that of an environment of its own.
TENSORRT_LLM_PYTHON = Path(sys.executable) if find_spec("tensorrt_llm") is not None else _OWN
#: Reason to skip tests with TensorRT-LLM; empty where there is an environment.
ABSENT = (
    ""
    if TENSORRT_LLM_PYTHON.exists()
    else f"no {_OWN}: make .venv/.tensorrt-llm creates the environment on a machine with TensorRT-LLM"
)
