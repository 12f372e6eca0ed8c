"""Publishing the policy's weights: a gathered snapshot, or its adapter alone, and a canary that proves what
was sent."""

import math

from kubealign.v1 import refit_pb2
from kubealign_services.batch.packed import pack
from kubealign_services.refit.canary import Canary
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.training.contract import Diverged
from kubealign_services.training.core import TrainingCore


class WeightsCommand:
    """The PublishWeights command. All ranks gather; rank 0 alone has a publisher."""

    def __init__(self, core: TrainingCore, canary: Canary, publisher: WeightsPublisher | None) -> None:
        self._core = core
        self._canary = canary
        self._publisher = publisher

    def __call__(self, request: refit_pb2.PublishWeightsRequest) -> refit_pb2.WeightsAnnouncement:
        self._core.check_fence(request.fence)
        backend = self._core.backend
        tokens = self._canary.tokens
        logprobs = backend.forward(pack([tokens], ["canary"]), frozenset({"logprobs"}))["logprobs"][
            1:
        ].tolist()
        if not all(map(math.isfinite, logprobs)):
            raise Diverged(
                f"weights of version {request.version} give log-probabilities that are not finite: the "
                "update destroyed them (the learning rate in spec.trainer.optimizer may be too high)"
            )
        adapter = backend.adapter()
        tensors = backend.snapshot() if adapter is None else adapter.tensors
        if self._publisher is None:
            for _ in tensors:
                pass
            return refit_pb2.WeightsAnnouncement()
        return self._publisher.publish(
            fence=request.fence,
            version=request.version,
            tensors=tensors,
            canary=self._canary.message(logprobs),
            adapter=None if adapter is None else refit_pb2.AdapterEncoding(scale=adapter.scale),
        )
