"""Restoring the weights of a target that lost them, without another announcement."""

import asyncio
from typing import Any

import pytest
import torch

from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.weights.receive.recovery import recover_weights
from kubealign_services.weights.receive.refit_worker import Quarantined

pytestmark = pytest.mark.timeout(30)


class Losses:
    """Reports losses of a server, and loads the base weights, which may fail."""

    def __init__(self, receiver: Any) -> None:
        self.causes: asyncio.Queue[str] = asyncio.Queue()
        self.bases = 0
        self.failing = 0
        self._receiver = receiver

    async def lost(self) -> str:
        return await self.causes.get()

    async def base(self) -> None:
        self.bases += 1
        if self.failing:
            self.failing -= 1
            raise Unreachable("it died again")

    def lose(self, cause: str) -> None:
        for weight in self._receiver.model.weights.values():
            weight.zero_()
        self.causes.put_nowait(cause)


async def test_lost_weights_are_restored_after_the_base(stage: Any) -> None:
    """Version 1 is restored after two losses, one of them during the restoration."""
    sender = stage.sender()
    receiver = stage.receiver("a", sender)
    losses = Losses(receiver)
    recovery = asyncio.create_task(recover_weights(receiver.worker, losses.lost, losses.base))
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        sender.model.step()
        await broadcast.publish(1)
        await receiver.worker.wait_for_version(1, 1, timeout=5)
        assert receiver.refits == 2
        losses.failing = 1
        losses.lose("the server was killed")
        await asyncio.sleep(0)
        while not receiver.worker.quarantined:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(Quarantined, match="the server was killed"):
            await receiver.worker.wait_for_version(1, 1, timeout=5)
        await asyncio.wait_for(receiver.worker.wait_until_released(), 10)
        await receiver.worker.wait_for_version(1, 1, timeout=5)
        assert (receiver.refits, losses.bases) == (3, 2)
        head = "head.weight"
        assert torch.equal(receiver.model.weights[head], sender.model.weights[head])
        assert broadcast.quarantined == frozenset()
    recovery.cancel()


async def test_loss_before_any_announcement_waits_for_the_first(stage: Any) -> None:
    sender = stage.sender()
    receiver = stage.receiver("a", sender)
    losses = Losses(receiver)
    recovery = asyncio.create_task(recover_weights(receiver.worker, losses.lost, losses.base))
    losses.lose("the server was killed")
    await asyncio.sleep(0.05)
    assert not receiver.worker.quarantined
    async with stage.broadcast(sender) as broadcast:
        await broadcast.publish(0)
        await receiver.worker.wait_for_version(1, 0, timeout=5)
    assert not recovery.done()
    recovery.cancel()
