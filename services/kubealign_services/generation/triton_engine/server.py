"""The Triton server of a worker: a child process that is restarted when it dies, or a server that already
runs elsewhere.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import xxhash

from kubealign.backoff import restart_delay
from kubealign.local.processes.ports import LOOPBACK, PortAllocator
from kubealign.process_settings import TlsFiles
from kubealign_services.generation.triton_engine.model_repository import (
    PACKAGES_FOLDER,
    write_model_repository,
)
from kubealign_services.generation.triton_engine.server_install import TritonInstallation, server_arguments
from kubealign_services.runtime.process.child_pids import list_child_pids

log = logging.getLogger(__name__)

_EXEC_MODULE = "kubealign_services.runtime.process.exec_with_parent"
#: Grace period after SIGTERM. An idle server ends in two or three seconds, one with open streams never does.
_STOP_SECONDS = 6.0
_SHARED_MEMORY_FOLDER = Path("/dev/shm")
_LOG_LINE = re.compile(r"([IWEF])\d{4} ")
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.ERROR}
#: Warnings that Triton logs on every machine without a GPU.
_NO_GPU_WARNINGS = ("CudaDriverHelper", "pinned system memory", "NVML", "DCGM")
_MAX_LINE_BYTES = 1 << 20


class TritonServer(Protocol):
    """A Triton server as a context manager, which ends only a server that it has started itself."""

    #: host:port of the Prometheus metrics over plain HTTP; None where they are not accessible.
    metrics_address: str | None
    #: The last error in the server's log; empty where there is none or the log is not accessible.
    last_error: str

    async def start(self) -> str:
        """Return host:port of the gRPC service of a started server, which may not be ready yet."""

    async def kill(self) -> None:
        """Kill the server, so that `start` starts a new one. Does nothing for an external server."""

    async def wait_until_ended(self) -> str:
        """Wait until the server has ended, and return how. Never returns for an external server."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ExternalTritonServer:
    """A server at host:port that is managed elsewhere."""

    metrics_address: str | None = None
    last_error = ""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def start(self) -> str:
        return self._endpoint

    async def kill(self) -> None:
        return None

    async def wait_until_ended(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class ManagedTritonServer:
    """A child process on loopback, with new ports at each start. The kernel ends it with this process.

    folder: created anew, and owned by the server while the context is open. start_seconds: time limit for
    the model's start.
    """

    def __init__(
        self, installation: TritonInstallation, folder: Path, tls: TlsFiles, start_seconds: float
    ) -> None:
        self.metrics_address: str | None = None
        self.last_error = ""
        #: Pid of the running process; None where none runs.
        self.pid: int | None = None
        self._installation = installation
        self._folder = folder
        self._tls = tls
        self._start_seconds = start_seconds
        self._region_prefix = f"kubealign_{xxhash.xxh3_64_hexdigest(bytes(folder))}_"
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._pipe: asyncio.ReadTransport | None = None
        self._ports: PortAllocator | None = None
        self._address = ""
        self._started_at = 0.0
        self._restart_count = 0

    async def start(self) -> str:
        if self._process is not None and self._process.returncode is not None:
            await self._wait_for_restart(self._process.returncode)
        if self._process is None:
            await self._spawn()
        return self._address

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._send_signal(signal.SIGKILL)
            await self._process.wait()

    async def wait_until_ended(self) -> str:
        if self._process is None:
            return "the Triton server is not running"
        # The model has its own process; if only that one ended, the server would wait for ever.
        models = [asyncio.create_task(_wait_for_exit(child)) for child in list_child_pids(self._process.pid)]
        server = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([server, *models], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (server, *models):
                task.cancel()
        if self._process.returncode is None:
            return "the model's process in the Triton server ended"
        return f"the Triton server ended with {_describe_exit(self._process.returncode)}"

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(write_model_repository, self._folder, self._installation)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            self._send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                log.warning("Triton server did not stop on SIGTERM", extra={"seconds": _STOP_SECONDS})
                self._send_signal(signal.SIGKILL)
                await process.wait()
        await self._clean_up()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _spawn(self) -> None:
        self._remove_shared_memory()
        # The server binds the ports only after its model has loaded; they stay reserved until then.
        self._ports = PortAllocator()
        grpc, metrics = self._ports.allocate(), self._ports.allocate()
        options = server_arguments(
            self._folder, self._tls, grpc, metrics, self._region_prefix, self._start_seconds
        )
        # An explicit pipe: the model's process may keep the write end open for longer than the server lives.
        reading, writing = os.pipe()
        lines = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb", 0)
        )
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _EXEC_MODULE, str(os.getpid()), str(self._installation.binary)),
            *options,
            env=self._installation.server_environment(os.environ) | self._launcher_path(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C on a terminal must reach this process only, which then shuts the server down in order.
            start_new_session=True,
        )
        os.close(writing)
        self._log_task = asyncio.create_task(self._forward_log(lines), name="Triton's log")
        self._started_at = time.monotonic()
        self._address, self.metrics_address = f"{LOOPBACK}:{grpc}", f"{LOOPBACK}:{metrics}"
        self.pid = self._process.pid
        log.info("Triton server started", extra={"pid": self.pid, "address": self._address})

    def _launcher_path(self) -> dict[str, str]:
        # This process may have found its packages by PYTHONPATH only, which the server's environment lacks.
        return {"PYTHONPATH": str(self._folder / PACKAGES_FOLDER)}

    async def _wait_for_restart(self, code: int) -> None:
        lived = time.monotonic() - self._started_at
        await self._clean_up()
        self._restart_count += 1
        delay = restart_delay(self._restart_count, lived)
        extra = {"how": _describe_exit(code), "lived_seconds": round(lived, 1), "again_after_seconds": delay}
        log.warning("Triton server is started again", extra=extra)
        await asyncio.sleep(delay)

    async def _clean_up(self) -> None:
        """Clean up after the server has ended."""
        if self.pid is not None:
            # Kill the whole process group: the model's process may wait for ever for a killed server.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process, self.metrics_address, self.pid, self._ports = None, None, None, None
        lines, self._log_task = self._log_task, None
        pipe, self._pipe = self._pipe, None
        if lines is not None:
            await asyncio.wait([lines], timeout=1.0)
            lines.cancel()
        if pipe is not None:
            pipe.close()
        self._remove_shared_memory()

    async def _forward_log(self, stream: asyncio.StreamReader) -> None:
        """Forward the server's output to the log.

        Triton's own lines begin with the letter of their level; the model's lines do not.
        """
        while line := await stream.readline():
            text = line.decode(errors="replace").rstrip()
            level_match = _LOG_LINE.match(text)
            level = _LEVELS[level_match[1]] if level_match else logging.INFO
            if any(words in text for words in _NO_GPU_WARNINGS):
                level = logging.DEBUG
            if level == logging.ERROR:
                self.last_error = text
            if text:
                log.log(level, "tritonserver: %s", text)

    def _remove_shared_memory(self) -> None:
        """Remove the shared memory that a killed server leaves behind."""
        for region in _SHARED_MEMORY_FOLDER.glob(f"{self._region_prefix}*"):
            region.unlink(missing_ok=True)

    def _send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        # The process may have just ended.
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


async def _wait_for_exit(pid: int) -> None:
    """Wait until the process has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


def _describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
