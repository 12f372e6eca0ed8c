"""Health of the job's processes: heartbeats, restarts, quarantine, stalls."""

from collections.abc import Iterator

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number
from kubealign.process_settings import Role
from kubealign.role_specs import ROLE_SPECS

#: Seconds. Heartbeats come every five seconds and expire after fifteen.
SILENT_SECONDS = 20.0
#: Restarts of one process above which they are no coincidence.
RESTARTS = 3
#: A stalled step takes this multiple of the usual time and at least these seconds: validations and
#: checkpoints take time too.
STALLED_TIMES, STALLED_SECONDS = 20.0, 120.0
#: Roles that send heartbeats.
_REPORTING_ROLES = frozenset(role.name for role in ROLE_SPECS.values() if role.serves)


def check_processes(job: ObservedJob) -> Iterator[HealthFinding]:
    if job.phase != "Running":
        return
    # Without any heartbeat Redis itself is unavailable.
    heard = any(process.says for process in job.processes)
    for process in job.processes:
        if process.role not in _REPORTING_ROLES:
            continue
        if heard and process.state is ProcessState.READY and _is_silent(process):
            yield _silent_finding(process)
        if process.restarts >= RESTARTS:
            yield _restarts_finding(process)
        if process.says.get("quarantined"):
            yield _quarantine_finding(process)
        if process.role == Role.DRIVER:
            yield from _stall(job, process)


def _is_silent(process: ProcessRecord) -> bool:
    return process.silent_seconds is None or process.silent_seconds > SILENT_SECONDS


def _silent_finding(process: ProcessRecord) -> HealthFinding:
    since = "lately" if process.silent_seconds is None else f"for {process.silent_seconds:.0f} s"
    return HealthFinding(
        Severity.WARNING,
        f"{process.name} is silent",
        f"It has sent no heartbeat {since}, though it counts as ready: its event loop may be blocked.",
        "See its log. If it does not recover by itself, kill it: it is restarted.",
        "",
        "silent-process",
    )


def _restarts_finding(process: ProcessRecord) -> HealthFinding:
    return HealthFinding(
        Severity.WARNING,
        f"{process.name} keeps dying",
        f"It was restarted {process.restarts} times" + (f": {process.message}." if process.message else "."),
        "The end of its log before the restart shows the cause; without a message it was killed, most often "
        "for memory.",
        "",
        "restarts",
    )


def _quarantine_finding(process: ProcessRecord) -> HealthFinding:
    cause = str(process.says.get("last_error") or "no cause was reported")
    return HealthFinding(
        Severity.WARNING,
        f"{process.name} is quarantined",
        f"Its last refit failed, so it generates nothing: {cause}.",
        "It comes back with the next refit that succeeds. If it does not, see its log, and kill it.",
        "refit/quarantined_workers",
        "refits-fail",
    )


def _stall(job: ObservedJob, driver: ProcessRecord) -> Iterator[HealthFinding]:
    since, usual = driver.says.get("seconds_since_step"), job.series.recent_median("seconds/step")
    if not isinstance(since, int | float) or usual is None:
        return
    if since > max(STALLED_SECONDS, STALLED_TIMES * usual):
        waits = str(driver.says.get("waiting_for") or "")
        yield HealthFinding(
            Severity.CRITICAL,
            "The job stands still",
            f"The last step was done {since:.0f} s ago, where {format_number(usual)} s are usual"
            + (f"; it waits for {waits}." if waits else "."),
            "Check if the process that it waits for is running, busy, or quarantined, and read its log.",
            "seconds/step",
            "stalled",
        )
