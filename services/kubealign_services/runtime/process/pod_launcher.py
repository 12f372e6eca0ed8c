"""Launcher of a pod with several role processes: starts the ranks, serves their common health, and ends them
together.

The operator restarts a group of ranks as a whole, so nothing is restarted here.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubealign.local.processes.exit_status import describe_exit, read_termination_message
from kubealign.pod_contract import TERMINATION_BYTES
from kubealign.process_settings import STACKS_SIGNAL, ExitCode, ProcessSettings
from kubealign.termination_message import last_error_line
from kubealign_services.runtime.process.health_server import HealthServer
from kubealign_services.runtime.process.termination_message import write_termination_message

log = logging.getLogger(__name__)

#: Time for the other ranks to say why they end, once one has. They may hang in a collective.
_OTHERS_SECONDS = 1.0
#: Shorter than the timeout of the kubelet's probes.
_HEALTH_SECONDS = 4.0
_CHUNK_BYTES = 1 << 16
#: Exit code of a container whose process a signal has killed, minus the signal's number.
_SIGNAL_EXIT = 128


class _Rank:
    """A role process of the pod."""

    def __init__(self, settings: ProcessSettings, process: asyncio.subprocess.Process) -> None:
        self.name = settings.name
        self._termination = settings.termination
        self._health = settings.health
        self._process = process
        #: End of what the process has written.
        self._tail = b""
        self._output = asyncio.create_task(self._forward_output(), name=f"output of {self.name}")
        self.exit = asyncio.create_task(self._wait_for_exit(), name=f"exit of {self.name}")

    @property
    def exit_code(self) -> int:
        """Exit code, or minus the signal number, of a process that has ended."""
        return self.exit.result()

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def is_healthy(self, path: str) -> bool:
        """Ask the health endpoint of the process."""
        assert self._health is not None
        host, _, port = self._health.rpartition(":")
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    return b" 200 " in await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            # It has not started to serve, has ended, or its event loop hangs.
            return False

    def describe_failure(self) -> str:
        """Return how the process ended, and why if it has said so."""
        if self.exit_code in (ExitCode.PERMANENT, ExitCode.STORAGE):
            cause = read_termination_message(self._termination)
            if cause:
                return f"{self.name}: {cause}"
        error = last_error_line(self._tail.decode(errors="replace"))
        return f"{self.name} {describe_exit(self.exit_code)}" + (f": {error}" if error else "")

    async def _forward_output(self) -> None:
        """Copy whole lines to the pod's log: those of different ranks must not be mixed."""
        output, pending = self._process.stdout, b""
        assert output is not None
        while chunk := await output.read(_CHUNK_BYTES):
            self._tail = (self._tail + chunk)[-TERMINATION_BYTES:]
            complete, newline, pending = (pending + chunk).rpartition(b"\n")
            if newline:
                _write(complete + newline)
        if pending:
            _write(pending + b"\n")

    async def _wait_for_exit(self) -> int:
        code = await self._process.wait()
        await self._output
        return code


async def run_ranks(
    module: str,
    ranks: Sequence[tuple[ProcessSettings, Path]],
    environments: Sequence[Mapping[str, str]],
    health: str,
    termination: Path,
) -> int:
    """Run `python -m MODULE SETTINGS` for each rank until one ends; return the exit code of the pod.

    SIGTERM is forwarded, and all ranks end by themselves. When one rank ends for another reason, the others
    are killed: they would wait for it in their collectives. The code is that of the rank that ended first,
    unless another one reports a permanent failure.

    Args:
        ranks: Settings of each rank, and the file with them.
        environments: Environment of each rank.
        health: host:port for the health of all ranks: ready or live when all are.
        termination: Termination message of the pod.

    Raises:
        PortInUse: The health port is taken.
    """
    started: list[_Rank] = []
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def forward(number: signal.Signals) -> None:
        if number != STACKS_SIGNAL:
            stop.set()
        for rank in started:
            rank.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, STACKS_SIGNAL):
        loop.add_signal_handler(number, forward, number)

    async def all_healthy(path: str) -> bool:
        answers = await asyncio.gather(*(rank.is_healthy(path) for rank in started))
        return len(started) == len(ranks) and all(answers)

    async with HealthServer(health, lambda: all_healthy("/readyz"), lambda: all_healthy("/livez")):
        try:
            for (settings, path), environment in zip(ranks, environments, strict=True):
                started.append(_Rank(settings, await _start(module, path, environment)))
                if stop.is_set():
                    # The signal came between the start of the process and its place in the list.
                    started[-1].send_signal(signal.SIGTERM)
            first = await _wait_for_end(started, stop)
        finally:
            for rank in started:
                rank.send_signal(signal.SIGKILL)
            await asyncio.gather(*(rank.exit for rank in started))
    return _report(started, first, termination)


async def _start(module: str, settings: Path, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        str(settings),
        env=dict(environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


async def _wait_for_end(ranks: Sequence[_Rank], stop: asyncio.Event) -> _Rank | None:
    """Wait until all ranks have ended, or until one has failed and the others had time to say why.

    Returns the rank that failed first; None: all have ended by themselves.
    """
    exits = {rank.exit for rank in ranks}
    while exits:
        done, exits = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
        failed = [rank for rank in ranks if rank.exit in done and rank.exit_code != ExitCode.DONE]
        if failed and not stop.is_set():
            if exits:
                await asyncio.wait(exits, timeout=_OTHERS_SECONDS)
            return failed[0]
    return None


def _report(ranks: Sequence[_Rank], first: _Rank | None, termination: Path) -> int:
    """Return the exit code of the pod, and write its termination message.

    Args:
        first: The rank that failed first; None: all have ended by themselves.
    """
    failed = [rank for rank in ranks if rank.exit_code != ExitCode.DONE]
    permanent = (rank for rank in failed if rank.exit_code == ExitCode.PERMANENT)
    cause = next(permanent, first or next(iter(failed), None))
    if cause is None:
        return ExitCode.DONE
    if cause.exit_code != ExitCode.STOPPED:
        write_termination_message(termination, cause.describe_failure())
        log.error("a rank has ended", extra={"rank": cause.name, "code": cause.exit_code})
    return cause.exit_code if cause.exit_code >= 0 else _SIGNAL_EXIT - cause.exit_code
