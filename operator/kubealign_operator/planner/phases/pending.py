"""The Pending phase: validation errors and dependencies on other jobs."""

from kubealign.spec.dependencies import dependency_names, result_kind_error, result_references
from kubealign.spec.errors import SpecError
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign.spec.status import DependencyResult, JobPhase
from kubealign_operator import names
from kubealign_operator.kube_views.observed_job import DependencyView
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.plan import ACCEPTED, DEPENDENCIES_READY, Decision, desired_condition
from kubealign_operator.planner.snapshot import JobSnapshot

INVALID = "Invalid"


def plan_invalid(snapshot: JobSnapshot, message: str) -> Decision:
    """Decide on a job with an invalid spec.

    A job that has started keeps its phase: the current validation is stricter than the one that admitted
    it.
    """
    phase = (
        snapshot.previous_status.phase
        if snapshot.has_started and snapshot.previous_status.phase is not None
        else JobPhase.PENDING
    )
    return Decision(phase, message, conditions=(desired_condition(ACCEPTED, False, INVALID, message),))


def dependency_errors(snapshot: JobSnapshot, job: AlignmentJob) -> list[SpecError]:
    """Return an error for each result that is used as a kind that it is not."""
    errors = []
    for path, name in result_references(job):
        dependency = snapshot.observed.dependencies.get(name)
        message = (
            None
            if dependency is None or dependency.makes is None
            else result_kind_error(path, name, dependency.makes)
        )
        if message is not None:
            errors.append(SpecError(message, format_path(path), name))
    return errors


def resolve_dependencies(
    snapshot: JobSnapshot, job: AlignmentJob
) -> list[DependencyResult] | FailureReason | str:
    """Resolve the results that the job builds on.

    Returns:
        The results; or a sentence that names the jobs still waited for; or the reason why a result will
        never exist.
    """
    results, missing = [], []
    for name in sorted(dependency_names(job)):
        dependency = snapshot.observed.dependencies.get(name)
        if dependency is None:
            missing.append(f"job {name}, which does not exist in namespace {snapshot.namespace}")
        elif dependency.phase == JobPhase.FAILED:
            detail = f": {dependency.message}" if dependency.message else ""
            return FailureReason("DependencyFailed", f"job {name}, whose result is needed, failed{detail}")
        elif dependency.phase != JobPhase.SUCCEEDED:
            missing.append(f"job {name}, which is {dependency.phase or 'Pending'}")
        else:
            result = _dependency_result(dependency)
            if result is None:
                return FailureReason(
                    "DependencyFailed", f"job {name} succeeded, but its status names no result"
                )
            results.append(result)
    if not missing:
        return results
    if snapshot.observed.dependency_cycle:
        chain = " needs ".join(snapshot.observed.dependency_cycle)
        remedy = "none of these jobs can start: delete one and name another model in it"
        return f"circular dependency: {chain}; {remedy}"
    return "waits for " + " and ".join(missing)


def plan_waiting(message: str) -> Decision:
    """Decide on a job whose dependencies have not succeeded yet."""
    conditions = (
        desired_condition(ACCEPTED, True, "Valid"),
        desired_condition(DEPENDENCIES_READY, False, "Waiting", message),
    )
    return Decision(JobPhase.PENDING, message, conditions)


def _dependency_result(dependency: DependencyView) -> DependencyResult | None:
    if dependency.result is not None:
        return DependencyResult.model_construct(
            name=dependency.name, claim_name=dependency.result.claim_name, path=dependency.result.path
        )
    if dependency.volume is None:
        return None
    path = f"{dependency.volume.path}/{names.run_directory(dependency.name, dependency.uid)}/result".lstrip(
        "/"
    )
    return DependencyResult.model_construct(
        name=dependency.name, claim_name=dependency.volume.claim_name, path=path
    )
