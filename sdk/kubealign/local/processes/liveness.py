"""Liveness of the processes of a local run: the probes, and the verdict that a process hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

# Five minutes at the default period, as for readiness.
_START_PROBES = 60

#: Returns when the process is alive. Raises, or does not return in time, when it is not.
Probe = Callable[[], Awaitable[None]]


class ProbeFailed(Exception):
    """The process gave no sign of life since the last probe."""


@dataclass(frozen=True)
class LivenessPolicy:
    """When a process counts as hung, as with a kubelet's livenessProbe.

    Failed probes are counted rather than seconds: while the runner itself is stopped, none fails.
    """

    period_seconds: float = 5.0
    timeout_seconds: float = 5.0
    failure_threshold: int = 12

    @property
    def silence(self) -> str:
        """Description of the time without a sign of life."""
        return (
            f"{self.failure_threshold} probes in a row ({self.failure_threshold * self.period_seconds:g} s)"
        )


DEFAULT_POLICY = LivenessPolicy()


class TouchedFileProbe:
    """Checks that a file has been touched since the last probe.

    Compares modification times with each other only, so a changed system clock does not matter.
    """

    def __init__(self, start_probes: int = _START_PROBES) -> None:
        """Configure the probe.

        Args:
            start_probes: Number of probes that may pass before the file appears: the process still imports
                its libraries.
        """
        self._start_probes = start_probes
        self._path: Path | None = None
        self._missing = 0
        self._last: int | None = None

    def start(self, path: Path) -> None:
        """Begin with a new process, which touches this file about once a second while it is alive."""
        path.unlink(missing_ok=True)
        self._path, self._missing, self._last = path, 0, None

    async def __call__(self) -> None:
        try:
            assert self._path is not None
            modified = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            self._missing += 1
            if self._missing > self._start_probes:
                raise ProbeFailed("the process has not started its event loop") from None
            return
        if modified == self._last:
            raise ProbeFailed("the event loop does not run, or a call has exceeded its deadline")
        self._last = modified


async def wait_until_hung(probe: Probe, policy: LivenessPolicy) -> None:
    """Probe periodically, and return when `failure_threshold` probes in a row have failed."""
    failures = 0
    while failures < policy.failure_threshold:
        await asyncio.sleep(policy.period_seconds)
        try:
            async with asyncio.timeout(policy.timeout_seconds):
                await probe()
        except Exception:  # noqa: BLE001 - any failure of a probe counts
            failures += 1
        else:
            failures = 0
