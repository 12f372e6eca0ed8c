"""What trainer and critic say of samples, asked while the last samples of the step are still made.

They hold the weights that the step starts from, and have nothing else to do. Of groups that are there, scored
or not, they are asked once these are as many as the groups that are missing: so there are few passes, each
over many sequences, and little is left to be asked at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.ledger import Group

#: float32 [T], one number for each token of the sequences.
Ask = Callable[[Batch], Awaitable[Tensor]]


class Ahead:
    """One column of a step's batch, of which parts may be known before the batch is whole."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._offered: set[tuple[str, int]] = set()
        #: Sample id -> its tokens, what was said of them.
        self._known: dict[str, tuple[Tensor, Tensor]] = {}
        self._asking: asyncio.Task[None] | None = None

    def offer(
        self, whole: Sequence[Group], missing: int, assemble: Callable[[Sequence[Group]], Batch]
    ) -> None:
        """whole: groups of the coming batch, with all their samples. missing: how many more it will have.
        Asks of those that are new, where they are enough and nothing is being asked."""
        new = [group for group in whole if (group.group_id, group.attempt) not in self._offered]
        if len(new) < max(1, missing) or not (self._asking is None or self._asking.done()):
            return
        if self._asking is not None and self._asking.exception() is not None:
            return  # `column` raises it
        self._offered.update((group.group_id, group.attempt) for group in new)
        self._asking = asyncio.create_task(self._learn(assemble(new)))

    async def column(self, batch: Batch) -> Tensor:
        """Of the whole batch, [T]; what is not known is asked now. Raises what asking raises."""
        asking = self._asking
        if asking is not None:
            await asking
        if not self._known:
            return await self._ask(batch)
        unknown = [index for index in range(len(batch)) if not self._knows(batch, index)]
        if unknown:
            await self._learn(batch.select(unknown))
        column = torch.cat([self._known[name][1] for name in batch.sample_ids])
        await self.close()
        return column

    async def close(self) -> None:
        """Forget what is known, and ask no more."""
        asking, self._asking = self._asking, None
        self._offered.clear()
        self._known.clear()
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _learn(self, batch: Batch) -> None:
        column = await self._ask(batch)
        offsets = batch.cu_seqlens.tolist()
        for name, start, end in zip(batch.sample_ids, offsets, offsets[1:], strict=False):
            self._known[name] = batch.tokens[start:end], column[start:end]

    def _knows(self, batch: Batch, index: int) -> bool:
        """Whether what is known of a sample was said of these tokens: a group that was asked for again has
        others."""
        known = self._known.get(batch.sample_ids[index])
        start, end = batch.cu_seqlens[index : index + 2].tolist()
        return known is not None and torch.equal(known[0], batch.tokens[start:end])
