"""Checks of this machine's prerequisites for local runs."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from kubealign.diagnostics.doctor.check_result import CheckResult, missing, ok, warning
from kubealign.local.errors import RunRefused
from kubealign.local.processes.cpu import available_cores
from kubealign.local.servers.nats import find_nats_program
from kubealign.local.servers.redis import find_redis_program

_MIN_PYTHON = (3, 11)
_MEMORY_FILES = Path("/dev/shm")
_GIB = 2**30
# Torch and transformers need this much in the fork server; each process with a model comes on top.
_MIN_MEMORY = 4 * _GIB
# Weights are transferred there, in two copies.
_MIN_SHARED_MEMORY = _GIB
_MIN_DISK = 5 * _GIB
_MIN_OPEN_FILES = 1024
_TORCH_SECONDS = 60
#: Packages that are looked for, by extra.
_PACKAGES = {
    "services": ("torch", "transformers", "grpc", "nats", "redis", "cryptography", "safetensors", "datasets"),
    "dashboard": ("fastapi", "uvicorn", "plotly", "redis"),
    "trackers": ("tensorboard", "wandb", "mlflow"),
}
_GPUS = """
import torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(torch.__version__, *[torch.cuda.get_device_name(index) for index in range(count)], sep="\\n")
"""


def run_checks(runs_dir: Path) -> Iterator[CheckResult]:
    """Yield one result per check, as soon as it is done; the last one imports torch in a subprocess."""
    yield _check_python()
    yield _check_system()
    yield from _check_packages()
    yield _check_program("NATS server", find_nats_program)
    yield _check_program("Redis server", find_redis_program)
    yield _check_memory()
    yield _check_shared_memory()
    yield _check_open_files()
    yield _check_ports()
    yield _check_disk(runs_dir)
    if find_spec("torch") is not None:
        yield _check_gpus()


def _check_python() -> CheckResult:
    version = platform.python_version()
    if sys.version_info < _MIN_PYTHON:
        return missing("Python", version, "install Python 3.11 or newer, and kubealign into it")
    return ok("Python", f"{version} in {sys.prefix}")


def _check_system() -> CheckResult:
    description = f"{platform.system()} {platform.machine()}, {_cores()}"
    if platform.system() != "Linux":
        return warning("system", description, "runs are tested on Linux only: use one or a cluster")
    return ok("system", description)


def _cores() -> str:
    available, total = available_cores(), os.cpu_count() or 1
    return f"{available} cores" if available == total else f"{available} of its {total} cores"


def _check_packages() -> Iterator[CheckResult]:
    for extra, names in _PACKAGES.items():
        absent = [name for name in names if find_spec(name) is None]
        what = f"packages [{extra}]"
        if not absent:
            yield ok(what, "installed")
            continue
        tell = missing if extra == "services" else warning
        yield tell(what, f"without {', '.join(absent)}", f"pip install 'kubealign[{extra}]'")


def _check_program(what: str, find: Callable[[], Path]) -> CheckResult:
    try:
        return ok(what, str(find()))
    except (RunRefused, ImportError) as error:
        return missing(what, str(error), "pip install 'kubealign[services]'")


def _check_memory() -> CheckResult:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError) as error:
        return warning("memory", f"cannot be read: {error}", "check that some GiB are free")
    if free < _MIN_MEMORY:
        return warning(
            "memory", f"{_gib(free)} free", f"free at least {_gib(_MIN_MEMORY)}, or use a smaller model"
        )
    return ok("memory", f"{_gib(free)} free")


def _check_shared_memory() -> CheckResult:
    what = str(_MEMORY_FILES)
    if not os.access(_MEMORY_FILES, os.W_OK):
        return warning(
            what, "cannot be written", "mount a tmpfs there: until then weights are transferred on disk"
        )
    free = shutil.disk_usage(_MEMORY_FILES).free
    if free < _MIN_SHARED_MEMORY:
        remedy = "make it larger (docker run --shm-size, mount -o remount,size=): it holds weights twice"
        return warning(what, f"{_gib(free)} free", remedy)
    return ok(what, f"{_gib(free)} free")


def _check_open_files() -> CheckResult:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_OPEN_FILES:
        remedy = f"ulimit -n {min(hard, 4096) if hard != resource.RLIM_INFINITY else 4096}"
        return warning("open files", f"at most {soft}", remedy)
    return ok("open files", f"at most {soft}")


def _check_ports() -> CheckResult:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
    except OSError as error:
        remedy = "allow listening on 127.0.0.1: a job's processes communicate there"
        return missing("loopback ports", f"cannot be opened: {error}", remedy)
    return ok("loopback ports", "can be opened")


def _check_disk(runs_dir: Path) -> CheckResult:
    existing = next(path for path in (runs_dir, *runs_dir.parents) if path.exists())
    what = f"disk of {runs_dir}"
    if not os.access(existing, os.W_OK):
        return missing(what, f"{existing} cannot be written", "name another folder with --runs-dir")
    free = shutil.disk_usage(existing).free
    if free < _MIN_DISK:
        return warning(what, f"{_gib(free)} free", f"free {_gib(_MIN_DISK)}, or name another with --runs-dir")
    return ok(what, f"{_gib(free)} free")


def _check_gpus() -> CheckResult:
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _GPUS], capture_output=True, text=True, timeout=_TORCH_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        return warning("torch", f"was not imported within {_TORCH_SECONDS} s", "try python -c 'import torch'")
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        return missing(
            "torch",
            f"cannot be imported: {last[0]}",
            "install torch again: pip install 'kubealign[services]'",
        )
    version, *gpus = completed.stdout.strip().splitlines()
    if not gpus:
        return ok("torch", f"{version}, no GPU: everything runs on the CPU")
    detail = f"{version}, {_count_names(gpus)}"
    if not _has_c_compiler():
        remedy = "install gcc, or set CC: without one the torch engine generates several times slower"
        return warning("torch", f"{detail}, no C compiler", remedy)
    return ok("torch", detail)


def _has_c_compiler() -> bool:
    """Return True if Triton finds the C compiler that it needs at run time."""
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def _count_names(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
