"""Every role starts without the packages of the optional dependencies."""

import subprocess
import sys

from kubealign.role_specs import ROLE_SPECS

#: Top-level packages of the extras mcp, megatron, triton, dashboard, trackers and verifiers, and of external
#: engines.
OPTIONAL_PACKAGES = (
    "fastapi",
    "mcp",
    "megatron",
    "mlflow",
    "plotly",
    "swanlab",
    "tensorboard",
    "tensorrt_llm",
    "trackio",
    "tritonclient",
    "uvicorn",
    "verifiers",
    "vllm",
    "wandb",
)
_IMPORT_WITHOUT = """
import importlib, sys

modules, missing = (argument.split() for argument in sys.argv[1:])
sys.modules.update(dict.fromkeys(missing))  # importing a name whose module is None raises ImportError
for module in modules:
    importlib.import_module(module)
"""


def test_roles_import_no_optional_package() -> None:
    modules = [spec.module for spec in ROLE_SPECS.values() if spec.module is not None]
    command = [sys.executable, "-c", _IMPORT_WITHOUT, " ".join(modules), " ".join(OPTIONAL_PACKAGES)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
