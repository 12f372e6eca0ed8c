"""Quorum decision for one weights version: which workers have loaded it, failed or are silent. Pure.

| committed >= min_replicas | remaining workers could reach it | deadline passed | verdict |
| ------------------------- | -------------------------------- | --------------- | ------- |
| yes                       | any                              | any             | REACHED |
| no                        | yes                              | no              | WAITING |
| no                        | yes                              | yes             | LOST    |
| no                        | no                               | any             | LOST    |
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from kubealign.v1 import batch_pb2, refit_pb2


class QuorumVerdict(Enum):
    """Verdict on a weight version: held by the quorum, still awaited, or out of reach."""

    REACHED = auto()
    WAITING = auto()
    LOST = auto()


@dataclass
class Quorum:
    """Acknowledgements of one version. The last acknowledgement of a worker counts.

    replicas: workers that are meant to run. known_workers: workers that acknowledged earlier versions.
    """

    weights: batch_pb2.WeightsId
    min_replicas: int
    replicas: int
    known_workers: frozenset[str] = frozenset()
    committed: dict[str, refit_pb2.RefitAcknowledgement] = field(default_factory=dict)
    failed: dict[str, refit_pb2.RefitAcknowledgement] = field(default_factory=dict)

    def add_ack(self, answer: refit_pb2.RefitAcknowledgement) -> bool:
        """Count an acknowledgement. Returns False, without counting it, when it is about other weights."""
        if answer.weights != self.weights:
            return False
        (self.committed if answer.error else self.failed).pop(answer.worker, None)
        (self.failed if answer.error else self.committed)[answer.worker] = answer
        return True

    @property
    def absent(self) -> frozenset[str]:
        """Known workers that have not answered."""
        return self.known_workers - self.committed.keys() - self.failed.keys()

    def verdict(self, deadline_passed: bool) -> QuorumVerdict:
        if len(self.committed) >= self.min_replicas:
            return QuorumVerdict.REACHED
        expected = max(self.replicas, len(self.known_workers | self.committed.keys() | self.failed.keys()))
        if deadline_passed or expected - len(self.failed) < self.min_replicas:
            return QuorumVerdict.LOST
        return QuorumVerdict.WAITING

    def failure_reasons(self, seconds: float) -> str:
        """Return the reasons for a missing quorum after so many seconds, worker by worker."""
        waited = f"{round(seconds, 1):g} s"
        failures = [f"{name}: {self.failed[name].error}" for name in sorted(self.failed)]
        silent = [f"{name}: no answer within {waited}" for name in sorted(self.absent)]
        return "; ".join(failures + silent) or f"no worker answered within {waited}"
