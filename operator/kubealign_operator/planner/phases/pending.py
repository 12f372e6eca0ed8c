"""The Pending phase: validation errors and dependencies on other jobs."""

from kubealign.spec.dependencies import dependency_names, result_kind_error, result_references
from kubealign.spec.errors import SpecError
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign.spec.status import DependencyResult, JobPhase, ResultLocation
from kubealign_operator import names
from kubealign_operator.kube_views.observed_job import DependencyView
from kubealign_operator.manifests.volume_claims import run_path
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.plan import ACCEPTED, DEPENDENCIES_READY, Decision, desired_condition
from kubealign_operator.planner.snapshot import JobSnapshot

INVALID = "Invalid"
#: Phases of a job that writes no checkpoints.
_IDLE_PHASES = (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.SUSPENDED)


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


def resolve_checkpoint_source(
    snapshot: JobSnapshot, job: AlignmentJob
) -> ResultLocation | FailureReason | str | None:
    """Resolve the run directory from whose checkpoint the job starts.

    Returns:
        The directory, None for a job that starts from its initial weights; or a sentence that names the job
        still waited for; or the reason why there will never be a checkpoint.
    """
    source = job.spec.checkpoint.source
    if source is None:
        return None
    if source.volume is not None:
        return ResultLocation.model_construct(claim_name=source.volume.claim_name, path=source.volume.path)
    name = "" if source.job is None else source.job.name
    parent = snapshot.observed.dependencies.get(name)
    if parent is None:
        return (
            f"waits for job {name}, whose checkpoint it needs and which does not exist in namespace "
            f"{snapshot.namespace}"
        )
    if parent.phase not in _IDLE_PHASES:
        return (
            f"waits for job {name}, whose checkpoint it needs and which is {parent.phase or 'Pending'}: "
            "suspend that job, or wait until it ends"
        )
    if parent.volume is None:
        return FailureReason("DependencyFailed", f"job {name} has no checkpoints: it names no volume")
    return ResultLocation.model_construct(claim_name=parent.volume.claim_name, path=_run_directory(parent))


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
    path = f"{_run_directory(dependency)}/result"
    return DependencyResult.model_construct(
        name=dependency.name, claim_name=dependency.volume.claim_name, path=path
    )


def _run_directory(job: DependencyView) -> str:
    """Return the folder of the job's run within its volume."""
    folder = "" if job.volume is None else job.volume.path
    return run_path(folder, names.run_directory(job.name, job.uid))
