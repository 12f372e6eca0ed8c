"""The outcome of a job, from the exit codes of its processes."""

from kubealign.process import Exit
from kubealign_operator.render import causes, names, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.look import Look


def succeeded(look: Look) -> bool:
    """Return True when the driver has finished its work, whatever became of the other processes."""
    return any(pod_state.exit_code(pod) == Exit.DONE for pod in look.pods_of(names.DRIVER))


def permanent_failure(look: Look) -> Cause | None:
    """Return the reason of the first process that reported a permanent failure."""
    process_names = {process.name for process in look.processes}
    for pod in look.pods:
        process = look.process_of(pod)
        if process in process_names and pod_state.exit_code(pod) == Exit.PERMANENT:
            return causes.permanent(process, pod)
    return None
