"""Whether the job's processes are there and get on."""

from collections.abc import Iterator

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.health.case import Case, shown
from kubealign.health.finding import Finding, Severity

#: Seconds. They beat every five; what is older than fifteen is gone.
SILENT = 20.0
#: Restarts of one process that are no chance any more.
RESTARTS = 3
#: A step that takes so many times the usual, and so many seconds at least: validations and commits take
#: their time too.
STALLED_TIMES, STALLED_SECONDS = 20.0, 120.0
#: Roles that say how they are.
_SPEAKING = frozenset({"trainer", "critic", "reference", "teacher", "reward", "rollout", "driver"})


def processes(case: Case) -> Iterator[Finding]:
    if case.phase != "Running":
        return
    # Where nobody is heard, it is Redis that is away.
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
        f"It has not said {since} how it is, though it counts as ready: its event loop may stand still.",
        "See its log. If it does not go on by itself, end it: it is started again.",
        "",
        "silent-process",
    )


def _restarts(process: ProcessRecord) -> Finding:
    return Finding(
        Severity.WARNING,
        f"{process.name} keeps dying",
        f"It was started again {process.restarts} times"
        + (f": {process.message}." if process.message else "."),
        "The end of its log before the restart says why; without a word there, it was killed, for memory "
        "most often.",
        "",
        "restarts",
    )


def _quarantine(process: ProcessRecord) -> Finding:
    cause = str(process.says.get("last_error") or "it did not say why")
    return Finding(
        Severity.WARNING,
        f"{process.name} is quarantined",
        f"Its last refit failed, so it generates nothing: {cause}.",
        "It comes back with the next refit that succeeds. If it does not, see its log, and end it.",
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
            "Look at the process that it waits for: whether it is there, busy, or quarantined, and what "
            "its log says.",
            "seconds/step",
            "stalled",
        )
