"""Before a job runs: what is wrong with it, and what it waits for."""

from kubealign.spec.dependencies import dependencies, misuse, references
from kubealign.spec.errors import SpecError
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import dotted
from kubealign.spec.status import Dependency, JobPhase
from kubealign_operator.render import names
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.decision import ACCEPTED, DEPENDENCIES_READY, Decision, said
from kubealign_operator.render.look import Look
from kubealign_operator.render.observed import JobView

INVALID = "Invalid"


def invalid(look: Look, message: str) -> Decision:
    """It cannot be run as it is written. One that has started is left as it is: whatever reads the spec now
    is stricter than what started it."""
    phase = look.past.phase if look.started and look.past.phase is not None else JobPhase.PENDING
    return Decision(phase, message, conditions=(said(ACCEPTED, False, INVALID, message),))


def misused(look: Look, job: AlignmentJob) -> list[SpecError]:
    """Results that are used as what they are not."""
    found = []
    for place, name in references(job):
        other = look.observed.dependencies.get(name)
        message = None if other is None or other.makes is None else misuse(place, name, other.makes)
        if message is not None:
            found.append(SpecError(message, dotted(place), name))
    return found


def resolved(look: Look, job: AlignmentJob) -> list[Dependency] | Cause | str:
    """The results that the job builds on; else what it waits for in a sentence, or why it never will have
    them."""
    found, missing = [], []
    for name in sorted(dependencies(job)):
        other = look.observed.dependencies.get(name)
        if other is None:
            missing.append(f"job {name}, which does not exist in namespace {look.namespace}")
        elif other.phase == JobPhase.FAILED:
            why = f": {other.message}" if other.message else ""
            return Cause("DependencyFailed", f"job {name}, whose result is needed, failed{why}")
        elif other.phase != JobPhase.SUCCEEDED:
            missing.append(f"job {name}, which is {other.phase or 'Pending'}")
        else:
            result = _result(other)
            if result is None:
                return Cause(
                    "DependencyFailed", f"job {name} succeeded, but does not say where its result lies"
                )
            found.append(result)
    if not missing:
        return found
    if look.observed.circle:
        chain = " needs ".join(look.observed.circle)
        return f"waits for itself: {chain}; none of them can start: delete one and name another model in it"
    return "waits for " + " and ".join(missing)


def waits_for_jobs(message: str) -> Decision:
    """Other jobs have to succeed first."""
    conditions = (
        said(ACCEPTED, True, "Valid"),
        said(DEPENDENCIES_READY, False, "Waiting", message),
    )
    return Decision(JobPhase.PENDING, message, conditions)


def _result(other: JobView) -> Dependency | None:
    if other.result is not None:
        return Dependency.model_construct(
            name=other.name, claim_name=other.result.claim_name, path=other.result.path
        )
    if other.volume is None:
        return None
    path = f"{other.volume.path}/{names.run_folder(other.name, other.uid)}/result".lstrip("/")
    return Dependency.model_construct(name=other.name, claim_name=other.volume.claim_name, path=path)
