"""Injects faults into a running job, and requires that it trains on after each of them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from support.chaos.clocks import set_clock
from support.chaos.job import NAME
from support.chaos.proxies import ENV_CONTROL, Disturbance, disturb
from support.chaos.schedule import Fault, FaultKind
from support.running import RunningJobs
from support.tiny_jobs import set_pace

#: A step must be made this long after the end of a fault: twelve probes of five seconds until a hung process
#: is killed, a restart, and the steps since the last checkpoint.
RECOVERY_SECONDS = 180.0
#: Pace while a process is stopped: the job may go on without it, and must not end before the faults do.
_PACE_WHILE_STOPPED = 5.0
_CONTROL = "links.json"


@contextlib.contextmanager
def proxied(folder: Path) -> Iterator[None]:
    """Start runs whose links `Nemesis` can disturb, with one thread per process so that they are exact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_CONTROL, str(folder / _CONTROL))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class Nemesis:
    """Injects faults one after another; each has ended, and a step was made since, before the next one."""

    def __init__(self, run: RunningJobs, folder: Path, pace: float, clocks: Path | None = None) -> None:
        """Prepare to disturb a run that was started under `proxied`.

        Args:
            folder: Folder of the job's files.
            pace: Least seconds of a step while nothing is disturbed.
            clocks: Folder of the run's clock files, for schedules that set clocks.
        """
        self._run = run
        self._control = folder / _CONTROL
        self._folder = folder
        self._pace = pace
        self._clocks = clocks
        #: Seconds from the end of each fault to the next step.
        self.recoveries: list[float] = []

    def inject(self, faults: Sequence[Fault]) -> None:
        """Inject the faults. Fails when the job ends before, or does not recover in time."""
        for number, fault in enumerate(faults, start=1):
            print(f"fault {number} of {len(faults)}: {fault}", flush=True)
            self._inject(fault)
            self._wait_for_recovery(fault)

    def _inject(self, fault: Fault) -> None:
        if fault.kind is FaultKind.FILL_DISK:
            self._fill_disk(fault.seconds)
            return
        pid = self._pid(fault.target)
        match fault.kind:
            case FaultKind.KILL:
                _send(pid, signal.SIGKILL)
            case FaultKind.STOP:
                set_pace(self._folder, _PACE_WHILE_STOPPED)
                _send(pid, signal.SIGSTOP)
                time.sleep(fault.seconds)
                _send(pid, signal.SIGCONT)
                set_pace(self._folder, self._pace)
            case FaultKind.DELAY | FaultKind.CUT | FaultKind.HALF_OPEN:
                set_pace(self._folder, _PACE_WHILE_STOPPED)
                disturb(self._control, fault.target, Disturbance(fault.kind), fault.seconds)
                time.sleep(fault.seconds)
                set_pace(self._folder, self._pace)
            case FaultKind.SET_CLOCK:
                assert self._clocks is not None
                set_clock(self._clocks, pid, fault.ahead)
                time.sleep(fault.seconds)
                set_clock(self._clocks, pid, 0.0)
            case FaultKind.WIPE_BUS:
                store = self._run.folder(NAME) / "nats" / "store"
                store.rename(store.with_name(f"lost-{time.monotonic_ns()}"))
                _send(pid, signal.SIGKILL)

    def _fill_disk(self, seconds: float) -> None:
        filler = self._run.runs / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(seconds)
        filler.unlink()

    def _pid(self, name: str) -> int:
        """Return the process id, once the process runs."""
        self._run.wait_until(
            f"{name} to run", lambda: self._run.processes(NAME).get(name, {}).get("pid"), RECOVERY_SECONDS
        )
        pid = self._run.processes(NAME)[name]["pid"]
        return self._pid(name) if pid is None else int(pid)

    def _wait_for_recovery(self, fault: Fault) -> None:
        began, lines = time.monotonic(), len(self._run.metrics(NAME))
        # The line of a step that was under way may follow; the next one was made after the fault.
        self._run.wait_until(
            f"two steps after {fault}", lambda: len(self._run.metrics(NAME)) >= lines + 2, RECOVERY_SECONDS
        )
        self.recoveries.append(time.monotonic() - began)


def inject_at_random(run: RunningJobs, faults: Iterable[Fault], pauses: Iterator[float], count: int) -> None:
    """Inject faults at random times, whatever the job does meanwhile, until `count` have hit a process."""
    hits = 0
    for fault in faults:
        if hits == count:
            return None
        time.sleep(next(pauses))
        pid = run.processes(NAME).get(fault.target, {}).get("pid")
        if pid is None:
            continue
        hits += 1
        if fault.kind is FaultKind.STOP:
            _send(pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            _send(pid, signal.SIGCONT)
        else:
            _send(pid, signal.SIGKILL)
    return hits


def _send(pid: int, number: signal.Signals) -> None:
    # It may have ended meanwhile, or have been killed while it was stopped.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
