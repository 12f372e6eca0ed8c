"""Letting go of the pods, and having let go: the driver first, which needs the others to commit."""

from kubealign.spec.status import JobPhase, RoleStatus
from kubealign_operator.render import names
from kubealign_operator.render.decision import ACCEPTED, READY, SUSPENDED, Decision, said
from kubealign_operator.render.look import Look, living
from kubealign_operator.render.past import active_seconds
from kubealign_operator.render.removal import delete, give_up


def suspending(look: Look) -> Decision:
    """There are pods left."""
    overdue, wake = give_up(look.pods, look.now)
    driver = living(look.pods_of(names.DRIVER))
    if driver:
        gone, message = delete(driver), "suspending: the driver finishes and commits"
    else:
        left = ", ".join(sorted({look.process_of(pod) for pod in look.pods})[:3])
        gone, message = delete(look.pods), f"suspending: waits for {left} to end"
    return Decision(
        JobPhase.SUSPENDING,
        message,
        conditions=(
            said(SUSPENDED, False, "Suspending", message),
            said(READY, False, "Suspending"),
        ),
        delete=(*overdue, *gone),
        wake=tuple(wake),
    )


def suspended(look: Look) -> Decision:
    """No pod is left, or none was ever made. A pod that turns up is removed."""
    at = "" if look.step is None else f" at step {look.step}"
    message = f"suspended{at}; it goes on when spec.suspend is false"
    overdue, wake = give_up(look.pods, look.now)
    active = active_seconds(look.past, look.stamp)
    roles = [RoleStatus(name=r.name, replicas=r.replicas, ready=0) for r in look.past.roles or []]
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
            "active_seconds": active or None,
            "roles": roles or None,
            "rollout_replicas": None if look.past.rollout_replicas is None else 0,
        },
        delete=(*overdue, *delete(look.pods)),
        wake=tuple(wake),
    )
