"""The outcome of a job, from the exit codes of its processes."""

from kubealign.process_settings import ExitCode
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.planner import failure_reasons
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.snapshot import JobSnapshot


def has_succeeded(snapshot: JobSnapshot) -> bool:
    """Return True when the driver has finished its work, whatever became of the other processes."""
    return any(pod_state.exit_code(pod) == ExitCode.DONE for pod in snapshot.pods_in_group(names.DRIVER))


def permanent_failure(snapshot: JobSnapshot) -> FailureReason | None:
    """Return the reason of the first process that reported a permanent failure."""
    process_names = {process.name for process in snapshot.processes}
    for pod in snapshot.pods:
        process = snapshot.process_name(pod)
        if process in process_names and pod_state.exit_code(pod) == ExitCode.PERMANENT:
            return failure_reasons.permanent_failure_reason(process, pod)
    return None
