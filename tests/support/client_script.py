"""What a researcher's script does, with whichever client it is given: only its constructor differs between
this machine and a cluster."""

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
    """What the script saw."""

    job: Job
    #: Each phase that the job was in, in order, without repetitions.
    phases: list[str] = field(default_factory=list)
    #: The driver's log, followed from before the driver was there.
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
    """Submit, follow the log, wait until it runs, scale, wait for the end, get the result. The job samples,
    and runs long enough for another rollout worker to join. `running` is called once it runs."""
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
    """A job that has only just begun to run may ask to be asked again."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with suppress(Conflict):
            job.scale(replicas)
            return
        time.sleep(0.2)
    raise AssertionError(f"{job} could not be scaled within {timeout:g} s")
