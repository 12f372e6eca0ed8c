"""Health of the job's processes: heartbeats, restarts, quarantine, stalls."""

from collections.abc import Iterator

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.health.case import Case, shown
from kubealign.health.finding import Finding, Severity

#: Seconds. Heartbeats come every five seconds and expire after fifteen.
SILENT = 20.0
#: Restarts of one process above which they are no coincidence.
RESTARTS = 3
#: A stalled step takes this multiple of the usual time and at least these seconds: validations and
#: checkpoints take time too.
STALLED_TIMES, STALLED_SECONDS = 20.0, 120.0
#: Roles that send heartbeats.
_SPEAKING = frozenset({"trainer", "critic", "reference", "teacher", "reward", "rollout", "driver"})


def processes(case: Case) -> Iterator[Finding]:
    if case.phase != "Running":
        return
    # Without any heartbeat Redis itself is unavailable.
    heard = any(process.says for process in case.processes)
    for process in case.processes:
        if process.role not in _SPEAKING:
            continue
        if heard and process.state is ProcessState.READY and _silent(process):
            yield _silence(process)
        if process.restarts >= RESTARTS:
            yield _restarts(process)
        if process.says.get("quarantined"):
            yield _quarantine(process)
        if process.role == "driver":
            yield from _stall(case, process)


def _silent(process: ProcessRecord) -> bool:
    return process.silent_seconds is None or process.silent_seconds > SILENT


def _silence(process: ProcessRecord) -> Finding:
    since = "lately" if process.silent_seconds is None else f"for {process.silent_seconds:.0f} s"
    return Finding(
        Severity.WARNING,
        f"{process.name} is silent",
        f"It has sent no heartbeat {since}, though it counts as ready: its event loop may be blocked.",
        "See its log. If it does not recover by itself, kill it: it is restarted.",
        "",
        "silent-process",
    )


def _restarts(process: ProcessRecord) -> Finding:
    return Finding(
        Severity.WARNING,
        f"{process.name} keeps dying",
        f"It was restarted {process.restarts} times" + (f": {process.message}." if process.message else "."),
        "The end of its log before the restart shows the cause; without a message it was killed, most often "
        "for memory.",
        "",
        "restarts",
    )


def _quarantine(process: ProcessRecord) -> Finding:
    cause = str(process.says.get("last_error") or "no cause was reported")
    return Finding(
        Severity.WARNING,
        f"{process.name} is quarantined",
        f"Its last refit failed, so it generates nothing: {cause}.",
        "It comes back with the next refit that succeeds. If it does not, see its log, and kill it.",
        "refit/quarantined_workers",
        "refits-fail",
    )


def _stall(case: Case, driver: ProcessRecord) -> Iterator[Finding]:
    since, usual = driver.says.get("seconds_since_step"), case.series.now("seconds/step")
    if not isinstance(since, int | float) or usual is None:
        return
    if since > max(STALLED_SECONDS, STALLED_TIMES * usual):
        waits = str(driver.says.get("waiting_for") or "")
        yield Finding(
            Severity.CRITICAL,
            "The job stands still",
            f"The last step was done {since:.0f} s ago, where {shown(usual)} s are usual"
            + (f"; it waits for {waits}." if waits else "."),
            "Check if the process that it waits for is running, busy, or quarantined, and read its log.",
            "seconds/step",
            "stalled",
        )
