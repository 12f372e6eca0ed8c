"""A typical user script over an AlignmentClient. Only the client's constructor differs between this machine
and a cluster."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubealign import AlignmentClient, AlignmentJob, Job
from kubealign.errors import Conflict


@dataclass
class Walked:
    """Observations of the script."""

    job: Job
    #: Phases of the job in order, without repetitions.
    phases: list[str] = field(default_factory=list)
    #: The driver's log, followed from before the driver was started.
    lines: list[str] = field(default_factory=list)
    result: Path = Path()


def walk(
    client: AlignmentClient,
    document: AlignmentJob | Mapping[str, Any],
    into: Path,
    *,
    replicas: int = 2,
    timeout: float = 240.0,
    running: Callable[[Job], None] = lambda job: None,
) -> Walked:
    """Submit a job, follow its log, wait until it runs, scale, wait for its end, and get the result. The job
    must sample, and run long enough for another rollout worker to join. `running` is called once the job
    runs."""
    job = client.submit(document)
    seen = Walked(job)
    reader = threading.Thread(
        target=lambda: seen.lines.extend(line.text for line in job.logs(process="driver", follow=True)),
        daemon=True,
    )
    reader.start()

    def note(changed: Job) -> None:
        phase = str(changed.phase)
        if seen.phases[-1:] != [phase]:
            seen.phases.append(phase)

    job.wait(timeout, on_change=note, until="Running")
    running(job)
    _scale(job, replicas, timeout)
    for changed in client.changes(job.name, job.namespace):
        note(changed)
        if changed.status.rollout_replicas == replicas:
            break
        assert not (changed.phase and changed.phase.is_final), f"it was over before it was scaled: {changed}"
    job.wait(timeout, on_change=note)
    reader.join(timeout)
    assert not reader.is_alive(), "the log is followed although the job is over"
    seen.result = job.result(into)
    return seen


def _scale(job: Job, replicas: int, timeout: float) -> None:
    """Scale the job. A job that has just started may answer Conflict, so retry."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(Conflict):
            job.scale(replicas)
            return
        time.sleep(0.2)
    raise AssertionError(f"{job} could not be scaled within {timeout:g} s")
