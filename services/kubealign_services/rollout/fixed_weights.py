"""Fixed weights of the policy's folder, for a job that trains nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.generation.contract import EngineLost
from kubealign_services.refit.worker import Quarantined
from kubealign_services.rpc.errors import OutOfOrder, StaleFence

#: Version of untrained weights.
VERSION = 0


class FixedWeights:
    """Weights of an engine that has loaded its folder, valid for the newest fence.

    They are unavailable only while an engine that lost them loads them again.
    """

    last: refit_pb2.RefitAcknowledgement | None = None

    def __init__(self) -> None:
        self.cause = ""
        self._there = asyncio.Event()
        self._there.set()
        self.current: batch_pb2.WeightsId | None = batch_pb2.WeightsId(version=VERSION)
        self._fence = 0

    @property
    def quarantined(self) -> bool:
        """True while the engine has lost its weights."""
        return bool(self.cause)

    async def kept(self, lost: Callable[[], Awaitable[str]], load: Callable[[], Awaitable[None]]) -> None:
        """Reload the weights, forever, each time that the engine has lost them."""
        while True:
            self.cause = await lost()
            self._there.clear()
            try:
                await load()
            except EngineLost as error:
                # Reported like the first loss.
                self.cause = str(error)
            else:
                self.cause = ""
                self._there.set()

    async def wait_for(self, fence: int, version: int, timeout: float) -> None:
        """Return at once if the weights fit.

        Raises:
            StaleFence: A newer fence is known.
            OutOfOrder: Nobody will produce this version.
            Quarantined: The engine has lost its weights.
        """
        if self.quarantined:
            raise Quarantined(f"this worker is quarantined: {self.cause}")
        if fence < self._fence:
            raise StaleFence(f"fence {fence} has been replaced by {self._fence}")
        if version > VERSION:
            raise OutOfOrder(f"version {version} is requested, but nothing is trained in this job")
        self._fence = fence
        self.current = batch_pb2.WeightsId(fence=fence, version=VERSION)

    async def released(self) -> None:
        """Wait until the weights are loaded."""
        await self._there.wait()


def folder_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of all weights of a Hugging Face folder, tied ones once. Raises OSError if the
    folder has none.
    """
    # Use the model's own loader, which knows every version and layout of the files.
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        # Tied weights are one tensor under several names.
        if id(weight) not in seen:
            seen.add(id(weight))
            yield name, weight.detach() if isinstance(weight, torch.nn.Parameter) else weight
