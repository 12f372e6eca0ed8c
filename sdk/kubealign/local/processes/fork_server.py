"""Fork server that starts processes in half a second each, with the heavy libraries already imported.

Extends the standard library's fork server: no process outlives the runner, every process writes to its own
log, and exits are events of the asyncio loop.
"""

import asyncio
import contextlib
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from kubealign.library_environment import BASE_ENVIRONMENT
from kubealign.local.errors import RunFailed
from kubealign.local.processes import child_main, fork_server_preload
from kubealign.local.processes.log_tail import read_log_tail

_ATTEMPTS = 3
_SERVER_EXIT_SECONDS = 5.0


class ChildProcess:
    """A process of the fork server.

    Leads its own session, whose remaining processes are killed when it exits.
    """

    def __init__(
        self, name: str, process: ForkServerProcess, log: Path, log_start: int, thread: ThreadPoolExecutor
    ):
        self.name = name
        self.log = log
        #: Size of the log, in bytes, when the process was started.
        self.log_start = log_start
        self.pid: int = process.pid or 0
        #: Seconds since the epoch.
        self.started_at = time.time()
        self._process = process
        self._executor = thread
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reap_task: asyncio.Future[None] | None = None
        self._pidfd = _open_pidfd(self.pid)
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit)

    @property
    def is_running(self) -> bool:
        return not self._exit.done()

    async def wait(self) -> int:
        """Wait for the exit and return the exit code, or minus the signal number."""
        return await asyncio.shield(self._exit)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its session at once."""
        if self.is_running:
            _kill_session(self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _on_exit(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        self._reap_task = asyncio.ensure_future(self._reap(loop))

    async def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        code = await loop.run_in_executor(self._executor, _join, self._process)
        _kill_session(self.pid)
        # A killed fork server disappears before the children that the kernel kills with it.
        await _wait_pidfd(self._pidfd)
        self._exit.set_result(code)


class ForkServer:
    """Fork server shared by all jobs of a run.

    A context manager; all processes that it started must have ended before it exits. Failed imports of
    `modules` are logged here and raised by the process that needs them.
    """

    def __init__(
        self, modules: Sequence[str], log: Path, environment: Mapping[str, str] = BASE_ENVIRONMENT
    ) -> None:
        self._modules = tuple(modules)
        self._log = log
        self._pid_file = log.with_suffix(".pid")
        self._killed = False
        self._environment = dict(environment)
        self._context = multiprocessing.get_context("forkserver")
        # The kernel ties the fork server's life to the thread that starts it. multiprocessing is used from
        # this one thread only, as its bookkeeping of children is not thread-safe.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fork-server")

    async def __aenter__(self) -> "ForkServer":
        await self._run_in_executor(self._ensure_running)
        return self

    async def __aexit__(self, *_: object) -> None:
        # The fork server dies with this thread.
        self._executor.shutdown(wait=False)
        self._pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill the fork server and all of its processes at once. It starts nothing afterwards."""
        self._killed = True
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(int(self._pid_file.read_text()), signal.SIGKILL)

    async def start_module(
        self,
        name: str,
        log: Path,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        """Start `module.main([name, *arguments])`, which returns the exit code.

        Args:
            environment: Variables of this process, in addition to those of the fork server.
        """
        target = child_main.run_module
        return await self._start(name, log, target, module, tuple(arguments), dict(environment or {}))

    async def start_program(self, name: str, log: Path, command: Sequence[str]) -> ChildProcess:
        """Start another program; command[0] is its path."""
        return await self._start(name, log, child_main.run_program, tuple(command))

    async def _start(self, name: str, log: Path, target: Any, *arguments: Any) -> ChildProcess:
        log_start = _file_size(log)
        process = await self._run_in_executor(self._launch, name, target, (name, str(log), *arguments))
        return ChildProcess(name, process, log, log_start, self._executor)

    async def _run_in_executor(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def _launch(self, name: str, target: Any, arguments: tuple[Any, ...]) -> ForkServerProcess:
        cause: Exception | None = None
        for _ in range(_ATTEMPTS):
            if self._killed:
                raise RunFailed(f"{name} is not started: the fork server was shut down")
            process = self._context.Process(target=target, name=name, args=arguments)
            try:
                with self._preload_environment():
                    multiprocessing.forkserver.ensure_running()  # type: ignore[attr-defined]
                    # If the server dies in between, start() starts another one with the same configuration.
                    process.start()
            except (EOFError, OSError) as error:
                # The fork server died in the meantime, together with the process being started.
                cause = error
                _wait_server_exit(_SERVER_EXIT_SECONDS)
            else:
                return process
        raise RunFailed(
            f"{name} could not be started: the fork server exits as soon as it starts. Its log, {self._log}, "
            f"ends:\n{read_log_tail(self._log)}"
        ) from cause

    def _ensure_running(self) -> None:
        """Start the fork server unless it is running."""
        with self._preload_environment():
            multiprocessing.forkserver.ensure_running()  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _preload_environment(self) -> Iterator[None]:
        """Set the preload configuration for a fork server that is started within the block."""
        config = fork_server_preload.PreloadConfig(
            os.getpid(), str(self._log), str(self._pid_file), self._environment, self._modules
        )
        self._context.set_forkserver_preload([fork_server_preload.__name__])
        os.environ[fork_server_preload.PRELOAD_VARIABLE] = config.to_json()
        try:
            yield
        finally:
            del os.environ[fork_server_preload.PRELOAD_VARIABLE]


def _wait_server_exit(seconds: float) -> None:
    """Wait for an unresponsive fork server to exit: multiprocessing starts no other one before that."""
    pid = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    handle = None if pid is None else _open_pidfd(pid)
    if handle is not None:
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends (see pidfd_open(2)).

    None if the process is gone or the system has no pidfds.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


async def _wait_pidfd(handle: int | None) -> None:
    """Wait until the process has ended, and close the descriptor."""
    if handle is None:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(handle, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _file_size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _join(process: ForkServerProcess) -> int:
    """Join the process and return its exit code. multiprocessing reports 255 for children of a dead fork
    server.
    """
    process.join()
    code = process.exitcode
    process.close()
    assert code is not None
    return code


def _kill_session(leader: int) -> None:
    """Kill what is left of the session of this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
