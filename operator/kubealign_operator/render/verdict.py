"""Whether a job is over, by what its processes say of themselves."""

from kubealign.process import Exit
from kubealign_operator.render import causes, names, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.look import Look


def succeeded(look: Look) -> bool:
    """The driver has ended with its work done, whatever became of the others."""
    return any(pod_state.exit_code(pod) == Exit.DONE for pod in look.pods_of(names.DRIVER))


def permanent_failure(look: Look) -> Cause | None:
    """The first process of the job that says that a restart would not help."""
    known = {process.name for process in look.processes}
    for pod in look.pods:
        process = look.process_of(pod)
        if process in known and pod_state.exit_code(pod) == Exit.PERMANENT:
            return causes.permanent(process, pod)
    return None
