"""What is told of weights, once every rank has its part written. Pure: all ranks make the same of the
same."""

from collections.abc import Sequence

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.manifest import weights_digest


def announcement_of(
    parts: Sequence[refit_pb2.WeightsPart],
    *,
    fence: int,
    version: int,
    canary: refit_pb2.Canary,
    adapter: refit_pb2.AdapterEncoding | None = None,
    base: batch_pb2.WeightsId | None = None,
) -> refit_pb2.WeightsAnnouncement:
    """parts: of all ranks. adapter: the tensors are an adapter's; None: they are all weights. base: what the
    parts' deltas, if they have any, are changes to.

    Raises ValueError when there is nothing in any part."""
    held = sorted((part for part in parts if part.tensors), key=lambda part: part.rank)
    if not held:
        raise ValueError("there are no weights to publish")
    return refit_pb2.WeightsAnnouncement(
        weights=batch_pb2.WeightsId(fence=fence, version=version, digest=weights_digest(held)),
        parts=held,
        size_bytes=sum(part.size_bytes for part in held),
        base=base if any(part.delta_sizes for part in held) else None,
        canary=canary,
        adapter=adapter,
    )
