"""A refit on paper: how much travels, where it lies, and how long each transport takes."""

from dataclasses import dataclass

from kubealign.plan.machine import Machine
from kubealign.plan.states import width
from kubealign.plan.trained import TrainedModel

#: Memory copies that a byte costs from the trainer's snapshot into a worker, measured on loopback
#: (docs/scaling.md): by shared memory, copied in and out; by gRPC in chunks.
SHARED_COPIES = 2.4
STREAM_COPIES = 9.5
#: Snapshots that the trainer keeps, so that a late worker can still read the one before.
SNAPSHOTS = 2


@dataclass(frozen=True)
class Handover:
    """sent: bytes of one version. snapshot: bytes that the trainer's machines hold of them in all. seconds:
    to each worker by shared memory, where it is on the same machine, and by stream to all of them."""

    sent: int
    snapshot: int
    shared_seconds: float
    stream_seconds: float


def handover(model: TrainedModel, workers: int, machine: Machine) -> Handover:
    """Weights travel in the precision of the arithmetic; of a job with an adapter that alone. A stream is
    bounded by the copies on either side, by the worker's network, and by the ranks', each of which sends its
    part to all workers."""
    count = model.weights if model.adapted is None else model.adapted
    sent = count * width(model.precision)
    return Handover(
        sent,
        SNAPSHOTS * sent,
        SHARED_COPIES * sent / machine.copy,
        max(
            STREAM_COPIES * sent / machine.copy,
            max(1, workers / model.trainer.ranks) * sent / machine.network,
        ),
    )
