"""What should be, given what is: the operator's decisions, all of them, in one pure function."""

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
    """What is to be done about a job that has been looked at. Raises nothing, whatever was seen.

    `processes`: what `roles` says of the job; `now` has a time zone.
    """
    seen = look(processes, observed, now, platform)
    if seen.leaving and not (seen.past.phase is not None and seen.past.phase.final):
        # Its pods go with it.
        return Rendered(status=as_json(seen.past))
    return assemble(seen, _decide(seen))


def _decide(seen: Look) -> Decision:
    phase = seen.past.phase
    if phase is not None and phase.final:
        return ended(seen, phase)
    try:
        job = parse(seen.observed.job)
    except InvalidJob as error:
        return invalid(seen, str(error))
    wrong = _wrong(seen, job)
    if wrong:
        return invalid(seen, "; ".join(wrong))
    if phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING):
        return _at_work(seen, job)
    return _at_rest(seen, job)


def _wrong(seen: Look, job: AlignmentJob) -> list[str]:
    if seen.started and job.spec.checkpoint.volume is not None:
        return []
    return [str(error) for error in (*problems(job), *misused(seen, job))]


def _at_work(seen: Look, job: AlignmentJob) -> Decision:
    if seen.past.phase is JobPhase.SUSPENDING or job.spec.suspend:
        if succeeded(seen):
            return success(seen, job)
        cause = permanent_failure(seen)
        if cause is not None:
            return failure(seen, cause)
        if seen.pods:
            return suspending(seen)
        if job.spec.suspend:
            return suspended(seen)
    return active(seen, job, seen.past.dependencies or [])


def _at_rest(seen: Look, job: AlignmentJob) -> Decision:
    if job.spec.suspend:
        return suspended(seen)
    if seen.started:
        return active(seen, job, seen.past.dependencies or [])
    found = resolved(seen, job)
    if isinstance(found, str):
        return waits_for_jobs(found)
    if isinstance(found, Cause):
        return failure(seen, found)
    return active(seen, job, found)
