"""The Python environment with vLLM beside that of the tests."""

from pathlib import Path

from kubealign_services.runtime.python_environments import environment_folder

VLLM_PYTHON: Path = environment_folder("vllm") / "bin" / "python"
#: Reason to skip tests with vLLM; empty where there is an environment.
ABSENT = "" if VLLM_PYTHON.exists() else f"no {VLLM_PYTHON}: make .venv/.vllm creates the environment"
