"""A rollout worker process: `python refit_worker_process.py SETTINGS.json`. Runs until it is killed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from torch import Tensor

from kubealign.process_settings import NatsAccess, TlsFiles
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.transfer.stream.peer_streams import PeerStreams

VOCABULARY, WIDTH = 2000, 300


class Bigram:
    """log p(next | token) = log_softmax(head @ embed[token]). Each tensor takes 2.4 MB: several chunks."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weights = {
            name: torch.randn(VOCABULARY, WIDTH, generator=generator)
            for name in ("embed.weight", "head.weight")
        }

    def logprobs(self, tokens: list[int]) -> list[float]:
        logits = self.weights["embed.weight"][tokens[:-1]] @ self.weights["head.weight"].T
        chosen: list[float] = logits.log_softmax(-1)[range(len(tokens) - 1), tokens[1:]].tolist()
        return chosen

    @asynccontextmanager
    async def paused(self, in_flight: InFlightPolicy) -> AsyncIterator[None]:
        yield

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        for name, tensor in tensors:
            self.weights[name].copy_(tensor)

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        return self.logprobs(tokens)


async def serve(settings: dict[str, str]) -> None:
    tls = TlsFiles.model_validate_json(settings["tls"])
    access = NatsAccess.model_validate_json(settings["nats"])
    bus = await JetStreamBus.connect(access, tls, name=settings["name"])
    async with PeerStreams(tls) as streams:
        receiver = WeightsReceiver(Path(settings["shared_memory"]), streams, timeout=30.0)
        await RefitWorker(settings["name"], bus, receiver, Bigram(seed=2), timeout=30.0).run()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
