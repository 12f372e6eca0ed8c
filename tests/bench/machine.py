"""Facts about the machine that runs the benchmark, and the environments of the processes it measures."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from kubealign.library_environment import library_environment as libraries
from kubealign.local.processes.cpu import available_cores

_PACKAGES = ("torch", "transformers", "trl", "numpy", "numba", "grpcio")


def facts() -> dict[str, Any]:
    """Return processor, cores, memory, and package versions."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "accelerator": _accelerator(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def environment(threads: int | None = None) -> dict[str, str]:
    """Return the environment of a side that is one process: one thread per core, with the OpenMP wait policy
    of a job whose processes take turns."""
    waiting = libraries(exclusive_cores=True)
    return job_environment(threads) | {name: waiting[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}


def job_environment(threads: int | None = None) -> dict[str, str]:
    """Return the environment common to all sides: one thread per core, no downloads."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads or available_cores()),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _accelerator() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
