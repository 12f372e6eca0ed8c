"""Estimate of a refit: bytes transferred, snapshot memory, and time of each transport."""

from dataclasses import dataclass

from kubealign.planning.machine import Machine
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.trainer import TrainedModel

#: Memory copies per byte from the trainer's snapshot into a worker, measured on loopback
#: (docs/scaling.md): by shared memory, copied in and out; by gRPC in chunks.
SHARED_COPIES = 2.4
STREAM_COPIES = 9.5
#: Snapshots kept by the trainer, so that a late worker can still read the previous one.
SNAPSHOTS = 2


@dataclass(frozen=True)
class WeightTransferEstimate:
    """Cost of transferring one weight version.

    Attributes:
        sent: Bytes of one version.
        snapshot: Total bytes of the snapshots on the trainer's machines.
        shared_seconds: Time to a worker on the same machine by shared memory.
        stream_seconds: Time to all workers by stream.
    """

    sent: int
    snapshot: int
    shared_seconds: float
    stream_seconds: float


def estimate_weight_transfer(model: TrainedModel, workers: int, machine: Machine) -> WeightTransferEstimate:
    """Estimate a weight transfer.

    Weights are transferred in the precision of the computation; a job with an adapter transfers only the
    adapter. A stream is bounded by the memory copies on both sides, by the worker's network, and by the
    network of the ranks, each of which sends its part to all workers.
    """
    count = model.weights if model.adapter_weights is None else model.adapter_weights
    sent = count * bytes_per_value(model.precision)
    return WeightTransferEstimate(
        sent,
        SNAPSHOTS * sent,
        SHARED_COPIES * sent / machine.copy_rate,
        max(
            STREAM_COPIES * sent / machine.copy_rate,
            max(1, workers / model.trainer.ranks) * sent / machine.network_rate,
        ),
    )
