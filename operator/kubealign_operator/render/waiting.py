"""The Pending phase: validation errors and dependencies on other jobs."""

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
    """Decide on a job with an invalid spec.

    A job that has started keeps its phase: the current validation is stricter than the one that admitted
    it.
    """
    phase = look.past.phase if look.started and look.past.phase is not None else JobPhase.PENDING
    return Decision(phase, message, conditions=(said(ACCEPTED, False, INVALID, message),))


def misused(look: Look, job: AlignmentJob) -> list[SpecError]:
    """Return an error for each result that is used as a kind that it is not."""
    errors = []
    for path, name in references(job):
        dependency = look.observed.dependencies.get(name)
        message = None if dependency is None or dependency.makes is None else misuse(path, name, dependency.makes)
        if message is not None:
            errors.append(SpecError(message, dotted(path), name))
    return errors


def resolved(look: Look, job: AlignmentJob) -> list[Dependency] | Cause | str:
    """Resolve the results that the job builds on.

    Returns:
        The results; or a sentence that names the jobs still waited for; or the reason why a result will
        never exist.
    """
    results, missing = [], []
    for name in sorted(dependencies(job)):
        dependency = look.observed.dependencies.get(name)
        if dependency is None:
            missing.append(f"job {name}, which does not exist in namespace {look.namespace}")
        elif dependency.phase == JobPhase.FAILED:
            detail = f": {dependency.message}" if dependency.message else ""
            return Cause("DependencyFailed", f"job {name}, whose result is needed, failed{detail}")
        elif dependency.phase != JobPhase.SUCCEEDED:
            missing.append(f"job {name}, which is {dependency.phase or 'Pending'}")
        else:
            result = _result(dependency)
            if result is None:
                return Cause(
                    "DependencyFailed", f"job {name} succeeded, but its status names no result"
                )
            results.append(result)
    if not missing:
        return results
    if look.observed.circle:
        chain = " needs ".join(look.observed.circle)
        remedy = "none of these jobs can start: delete one and name another model in it"
        return f"circular dependency: {chain}; {remedy}"
    return "waits for " + " and ".join(missing)


def waits_for_jobs(message: str) -> Decision:
    """Decide on a job whose dependencies have not succeeded yet."""
    conditions = (
        said(ACCEPTED, True, "Valid"),
        said(DEPENDENCIES_READY, False, "Waiting", message),
    )
    return Decision(JobPhase.PENDING, message, conditions)


def _result(dependency: JobView) -> Dependency | None:
    if dependency.result is not None:
        return Dependency.model_construct(
            name=dependency.name, claim_name=dependency.result.claim_name, path=dependency.result.path
        )
    if dependency.volume is None:
        return None
    path = f"{dependency.volume.path}/{names.run_folder(dependency.name, dependency.uid)}/result".lstrip("/")
    return Dependency.model_construct(name=dependency.name, claim_name=dependency.volume.claim_name, path=path)
