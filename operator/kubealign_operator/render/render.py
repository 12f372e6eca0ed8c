"""Plans one reconcile of a job: the desired state as a pure function of the observed state."""

from collections.abc import Sequence
from datetime import datetime

from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase
from kubealign_operator.render.activity import active
from kubealign_operator.render.assembly import as_json, assemble
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.decision import Decision
from kubealign_operator.render.ending import ended, failure, success
from kubealign_operator.render.look import Look, look
from kubealign_operator.render.observed import Observed
from kubealign_operator.render.parsing import InvalidJob, parse
from kubealign_operator.render.placement import problems
from kubealign_operator.render.platform import Platform
from kubealign_operator.render.rendered import Rendered
from kubealign_operator.render.suspension import suspended, suspending
from kubealign_operator.render.verdict import permanent_failure, succeeded
from kubealign_operator.render.waiting import invalid, misused, resolved, waits_for_jobs


def render(processes: Sequence[Process], observed: Observed, now: datetime, platform: Platform) -> Rendered:
    """Plan one reconcile of a job.

    Never raises, whatever was observed.

    Args:
        processes: Processes of the job, as `kubealign.roles.roles` lists them.
        observed: State of the job and of the objects that belong to it.
        now: Current time, with a time zone.
        platform: Settings of the platform's administrator.
    """
    snapshot = look(processes, observed, now, platform)
    if snapshot.leaving and not (snapshot.past.phase is not None and snapshot.past.phase.final):
        # Kubernetes garbage-collects the pods together with the job.
        return Rendered(status=as_json(snapshot.past))
    return assemble(snapshot, _decide(snapshot))


def _decide(snapshot: Look) -> Decision:
    phase = snapshot.past.phase
    if phase is not None and phase.final:
        return ended(snapshot, phase)
    try:
        job = parse(snapshot.observed.job)
    except InvalidJob as error:
        return invalid(snapshot, str(error))
    errors = _wrong(snapshot, job)
    if errors:
        return invalid(snapshot, "; ".join(errors))
    if phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING):
        return _at_work(snapshot, job)
    return _at_rest(snapshot, job)


def _wrong(snapshot: Look, job: AlignmentJob) -> list[str]:
    if snapshot.started and job.spec.checkpoint.volume is not None:
        return []
    return [str(error) for error in (*problems(job), *misused(snapshot, job))]


def _at_work(snapshot: Look, job: AlignmentJob) -> Decision:
    if snapshot.past.phase is JobPhase.SUSPENDING or job.spec.suspend:
        if succeeded(snapshot):
            return success(snapshot, job)
        failure_reason = permanent_failure(snapshot)
        if failure_reason is not None:
            return failure(snapshot, failure_reason)
        if snapshot.pods:
            return suspending(snapshot)
        if job.spec.suspend:
            return suspended(snapshot)
    return active(snapshot, job, snapshot.past.dependencies or [])


def _at_rest(snapshot: Look, job: AlignmentJob) -> Decision:
    if job.spec.suspend:
        return suspended(snapshot)
    if snapshot.started:
        return active(snapshot, job, snapshot.past.dependencies or [])
    results = resolved(snapshot, job)
    if isinstance(results, str):
        return waits_for_jobs(results)
    if isinstance(results, Cause):
        return failure(snapshot, results)
    return active(snapshot, job, results)
