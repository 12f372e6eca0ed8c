"""Live environment workers as seen from a rollout worker, and the choice among them. Pure."""

from dataclasses import dataclass

from kubealign.v1.environment_pb2 import EnvironmentWorkerState

#: Seconds after which a worker that has announced nothing counts as lost.
EXPIRY_SECONDS = 6.0


@dataclass
class EnvironmentReplica:
    """One environment worker.

    Attributes:
        state: Its newest announcement.
        expires_at: Time in seconds at which the announcement is outdated.
        opened: Sessions that this process has opened since the announcement.
        is_lost: It did not answer since the announcement.
        is_full: It refused a session since the announcement.
    """

    state: EnvironmentWorkerState
    expires_at: float
    opened: int = 0
    is_lost: bool = False
    is_full: bool = False

    @property
    def name(self) -> str:
        return self.state.worker

    @property
    def load(self) -> float:
        """Share of the capacity that is in use, as far as this process knows."""
        return (self.state.sessions + self.opened) / max(1, self.state.capacity)

    def is_live(self, now: float) -> bool:
        """Return True if the worker accepts sessions, now or when others have ended."""
        return not self.is_lost and not self.state.leaving and now < self.expires_at


class ReplicaDirectory:
    """Environment workers by name.

    Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, EnvironmentReplica] = {}
        self._choices = 0

    def add(self, state: EnvironmentWorkerState, age: float, now: float) -> bool:
        """Record an announcement; return False for one that is outdated.

        Args:
            age: Seconds since the announcement.
        """
        known = self._replicas.get(state.worker)
        is_older = (
            known is not None
            and known.state.incarnation == state.incarnation
            and known.state.sequence >= state.sequence
        )
        if is_older or age >= EXPIRY_SECONDS:
            return False
        self._replicas[state.worker] = EnvironmentReplica(state, now + EXPIRY_SECONDS - age)
        return True

    def forget_expired(self, now: float) -> list[EnvironmentReplica]:
        """Remove and return the workers whose last announcement is outdated."""
        expired = [replica for replica in self._replicas.values() if now >= replica.expires_at]
        for replica in expired:
            del self._replicas[replica.name]
        return expired

    def choose(self, now: float) -> EnvironmentReplica | None:
        """Return the live worker with the smallest load, and count a session for it.

        Workers with equal loads take turns. None: no live worker has capacity left.
        """
        free = [
            replica
            for _, replica in sorted(self._replicas.items())
            if replica.is_live(now) and not replica.is_full and replica.load < 1.0
        ]
        if not free:
            return None
        smallest = min(replica.load for replica in free)
        equal = [replica for replica in free if replica.load == smallest]
        chosen = equal[self._choices % len(equal)]
        self._choices += 1
        chosen.opened += 1
        return chosen

    def describe(self, now: float) -> str:
        """Return the known workers and their states, for messages."""
        states = [f"{name} {_describe(replica, now)}" for name, replica in sorted(self._replicas.items())]
        return ", ".join(states) or "none has announced itself"

    def has_live(self, now: float) -> bool:
        return any(replica.is_live(now) for replica in self._replicas.values())


def _describe(replica: EnvironmentReplica, now: float) -> str:
    if replica.is_lost or now >= replica.expires_at:
        return "does not answer"
    if replica.state.leaving:
        return "is leaving"
    return f"runs {replica.state.sessions + replica.opened} of {replica.state.capacity} episodes"
