"""The Suspending and Suspended phases. The driver is deleted first: it needs the other pods to save a
checkpoint.
"""

from kubealign.spec.status import JobPhase, RoleStatus
from kubealign_operator.render import names
from kubealign_operator.render.decision import ACCEPTED, READY, SUSPENDED, Decision, said
from kubealign_operator.render.look import Look, living
from kubealign_operator.render.past import active_seconds
from kubealign_operator.render.removal import delete, give_up


def suspending(look: Look) -> Decision:
    """Decide on a job that still has pods to stop."""
    overdue, requeue_at = give_up(look.pods, look.now)
    driver = living(look.pods_of(names.DRIVER))
    if driver:
        deletions, message = delete(driver), "suspending: the driver saves a checkpoint"
    else:
        remaining = ", ".join(sorted({look.process_of(pod) for pod in look.pods})[:3])
        deletions, message = delete(look.pods), f"suspending: waits for {remaining} to end"
    return Decision(
        JobPhase.SUSPENDING,
        message,
        conditions=(
            said(SUSPENDED, False, "Suspending", message),
            said(READY, False, "Suspending"),
        ),
        delete=(*overdue, *deletions),
        wake=tuple(requeue_at),
    )


def suspended(look: Look) -> Decision:
    """Decide on a suspended job. A pod that appears is deleted."""
    at_step = "" if look.step is None else f" at step {look.step}"
    message = f"suspended{at_step}; set spec.suspend to false to resume"
    overdue, requeue_at = give_up(look.pods, look.now)
    active_time = active_seconds(look.past, look.stamp)
    roles = [RoleStatus(name=role.name, replicas=role.replicas, ready=0) for role in look.past.roles or []]
    return Decision(
        JobPhase.SUSPENDED,
        message,
        conditions=(
            said(ACCEPTED, True, "Valid"),
            said(SUSPENDED, True, "Suspended", message),
            said(READY, False, "Suspended"),
        ),
        changes={
            "active_since": None,
            "active_seconds": active_time or None,
            "roles": roles or None,
            "rollout_replicas": None if look.past.rollout_replicas is None else 0,
        },
        delete=(*overdue, *delete(look.pods)),
        wake=tuple(requeue_at),
    )
