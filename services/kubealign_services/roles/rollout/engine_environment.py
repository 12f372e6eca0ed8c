"""Runs a rollout worker in its engine's Python environment, where the engine is not installed in this one.

vLLM and TensorRT-LLM pin versions that conflict with those of the other roles. Worker and roles communicate
by gRPC, NATS and weights in shared memory or streams, so their versions need not agree.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from kubealign.spec.sections.engines import Engine
from kubealign_services.runtime.python_environments import environment_folder

#: Environment and library of each engine that may have an environment of its own.
_ENVIRONMENTS = {"vllm": ("vllm", "vllm"), "tensorrt_llm": ("tensorrt-llm", "tensorrt_llm")}

# Not `python -m MODULE`: processes that the engine starts with the method "spawn" import their parent's main
# module again, and vLLM on a CPU cannot start beside the libraries of a rollout worker.
_CODE = """
import importlib, logging, os, sys
code = importlib.import_module(sys.argv[1]).main(sys.argv[1:])
logging.shutdown()
sys.stdout.flush()
sys.stderr.flush()
# Threads left behind must not keep the process alive.
os._exit(code)
"""


def find_engine_python(engine: Engine, variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return the interpreter of the engine's environment, or None where the worker runs in this environment:
    the engine needs no other, is installed in this one, or is installed nowhere.
    """
    if engine.member not in _ENVIRONMENTS:
        return None
    name, library = _ENVIRONMENTS[engine.member]
    python = environment_folder(name, variables) / "bin" / "python"
    is_this_one = python.parent.parent == Path(sys.prefix)
    # A folder of this name in the working directory is a package too, without a file.
    spec = find_spec(library)
    is_installed = spec is not None and spec.origin is not None
    return None if is_installed or is_this_one or not python.exists() else python


def enter_engine_environment(engine: Engine, module: str, settings_file: str, threads: int | None) -> None:
    """Replace this process by `module` in the engine's environment. Returns where the worker runs in this
    environment.

    Call it while the process has no threads and connections.

    Args:
        module: The rollout worker's main module.
        settings_file: File with the settings, the argument of `module`.
        threads: Compute threads of the worker; None: the number of the machine's cores.
    """
    python = find_engine_python(engine)
    if python is None:
        return
    variables = dict(os.environ)
    if threads is not None:
        # The engine's own processes read it when they import torch.
        variables.setdefault("OMP_NUM_THREADS", str(threads))
    os.execve(python, [str(python), "-c", _CODE, module, settings_file], variables)
