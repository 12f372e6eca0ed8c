"""Publication of the policy's weights: each rank's slices, or the adapter alone, with a canary that verifies
the transfer.
"""

import logging
import math
from collections.abc import Iterator

from kubealign.v1 import refit_pb2
from kubealign_services.batch.packed import pack
from kubealign_services.training.collectives import all_gather_bytes
from kubealign_services.training.commands.command_executor import TrainingCore
from kubealign_services.training.contract import AdapterSnapshot, ModelDiverged, TrainingBackend
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.announcement import build_announcement
from kubealign_services.weights.send.publisher import PublishFailed, WeightsPublisher
from kubealign_services.weights.verify.canary import Canary

log = logging.getLogger(__name__)


class PublishWeightsCommand:
    """PublishWeights command.

    Every rank writes its part, exchanges part descriptions with all others, and serves its part.
    """

    def __init__(
        self,
        core: TrainingCore,
        canary: Canary,
        publisher: WeightsPublisher,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._core = core
        self._canary = canary
        self._publisher = publisher
        self._rank = rank
        self._world_size = world_size

    def __call__(self, request: refit_pb2.PublishWeightsRequest) -> refit_pb2.WeightsAnnouncement:
        self._core.check_fence(request.fence)
        canary = self._canary.to_proto(self._canary_logprobs(request.version))
        backend = self._core.backend
        adapter = backend.adapter()
        base = self._publisher.delta_base
        parts = self._write_parts(
            _published_slices(backend, adapter, self._rank), with_deltas=adapter is None
        )
        announcement = build_announcement(
            parts,
            fence=request.fence,
            version=request.version,
            canary=canary,
            adapter=None if adapter is None else refit_pb2.AdapterEncoding(scale=adapter.scale),
            base=base,
        )
        self._publisher.seal(announcement.weights)
        return announcement

    def _canary_logprobs(self, version: int) -> list[float]:
        """Return the canary's log-probabilities.

        Raises the divergence error if the weights give NaN or infinity.
        """
        tokens = self._canary.tokens
        columns = self._core.backend.forward(pack([tokens], ["canary"]), frozenset({"logprobs"}))
        logprobs = [float(value) for value in columns["logprobs"][1:]]
        if not all(map(math.isfinite, logprobs)):
            raise ModelDiverged(
                f"weights of version {version} give log-probabilities that are not finite: the "
                "update destroyed them (the learning rate in spec.trainer.optimizer may be too high)"
            )
        return logprobs

    def _write_parts(self, slices: Iterator[WeightSlice], with_deltas: bool) -> list[refit_pb2.WeightsPart]:
        """Write this rank's part and return the parts of all ranks.

        A rank that cannot write its part sends the error, and all ranks fail alike, so that none waits for
        it.
        """
        if self._world_size == 1:
            return [self._publisher.write(slices, with_deltas=with_deltas)]
        own_part = refit_pb2.WrittenPart()
        failure: Exception | None = None
        try:
            own_part.part.CopyFrom(self._publisher.write(slices, with_deltas=with_deltas))
        except Exception as error:
            log.exception("cannot write this rank's weights", extra={"rank": self._rank})
            failure = error
            own_part.error = str(error) or type(error).__name__
        all_parts = [
            refit_pb2.WrittenPart.FromString(message)
            for message in all_gather_bytes(own_part.SerializeToString(), self._world_size)
        ]
        causes = [f"rank {rank}: {written.error}" for rank, written in enumerate(all_parts) if written.error]
        if causes:
            raise PublishFailed("; ".join(causes)) from failure
        return [written.part for written in all_parts]


def _published_slices(
    backend: TrainingBackend, adapter: AdapterSnapshot | None, rank: int
) -> Iterator[WeightSlice]:
    """Yield the slices that this rank publishes.

    Rank 0 publishes a whole adapter; the other ranks only take part in gathering it.
    """
    if adapter is None:
        yield from backend.slices()
        return
    for name, tensor in adapter.tensors:
        if rank == 0:
            yield WeightSlice.from_full_tensor(name, tensor)
