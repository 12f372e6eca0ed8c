"""Process records of a local run, from its runner or, without a runner, from its job."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kubealign.client.backends.local.role_names import process_role
from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.process_settings import ProcessSettings
from kubealign.read_model import ReadModelClient, ReadModelUnavailable
from kubealign.role_specs import SERVERS
from kubealign.roles import roles
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

_STATES_WITHOUT_RUNNER = {
    JobPhase.PENDING: ProcessState.WAITING,
    JobPhase.STARTING: ProcessState.WAITING,
    JobPhase.SUCCEEDED: ProcessState.FINISHED,
}


def running_records(
    processes: Sequence[Mapping[str, Any]], heartbeats: Mapping[str, Mapping[str, Any]]
) -> list[ProcessRecord]:
    """Return the records of a job whose runner has reported its processes. Pure except for the clock."""
    return [_to_record(process, heartbeats.get(process["name"], {})) for process in processes]


def idle_records(job: AlignmentJob, phase: JobPhase) -> list[ProcessRecord]:
    """Return the records of a job without a responding runner: the processes that it would have. Pure."""
    names = [*SERVERS, *(process.name for process in roles(job))]
    state = _STATES_WITHOUT_RUNNER.get(phase, ProcessState.STOPPED)
    return [ProcessRecord(name, process_role(name), state) for name in names]


async def read_heartbeats(folder: RunDirectory, processes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the last heartbeats from the Redis of a running job; empty if Redis is unavailable."""
    access = _redis_access(folder.settings)
    if access is None:
        return {}
    try:
        async with ReadModelClient(access) as reader:
            return await reader.heartbeats(processes)
    except (ReadModelUnavailable, ModuleNotFoundError):
        return {}


def _redis_access(settings: Path) -> Any:
    """Return the Redis access, which is in the settings of every process of the job."""
    for path in sorted(settings.glob("[!.]*.json")):
        try:
            return ProcessSettings.model_validate_json(path.read_bytes()).redis
        except (OSError, ValidationError):
            continue
    return None


def _to_record(process: Mapping[str, Any], says: Mapping[str, Any]) -> ProcessRecord:
    name, pid, started = process["name"], process["pid"], process.get("started_at")
    reported_at = says.get("time")
    return ProcessRecord(
        name=name,
        role=process_role(name),
        state=ProcessState(process["state"]),
        restarts=process["restarts"],
        message=process.get("message", ""),
        started=None if started is None else datetime.fromtimestamp(started, UTC),
        says=says,
        silent_seconds=max(0.0, time.time() - reported_at) if isinstance(reported_at, int | float) else None,
        where="" if pid is None else str(pid),
    )
