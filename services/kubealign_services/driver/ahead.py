"""Prefetches old log-probabilities and values for finished groups while the rest of the batch is still being
generated.

Trainer and critic hold the weights that the step starts from and are idle meanwhile. A request is sent
once at least as many groups are generated as are missing, scored or not. A batch of n groups thus needs
about log2(n) requests, each over many sequences, and little is left to request at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.ledger import Group

#: Returns float32 [T], one value for each token of the sequences.
Ask = Callable[[Batch], Awaitable[Tensor]]


class Ahead:
    """Prefetcher of one token column of a step's batch."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._offered: set[tuple[str, int]] = set()
        #: Sample id -> (tokens, values).
        self._known: dict[str, tuple[Tensor, Tensor]] = {}
        self._asking: asyncio.Task[None] | None = None

    def offer(
        self, whole: Sequence[Group], missing: int, assemble: Callable[[Sequence[Group]], Batch]
    ) -> None:
        """Request the column for new groups if there are enough of them and no request is running.

        Args:
            groups: Groups of the coming batch, all samples present.
            missing: Number of groups that the batch still lacks.
            assemble: Packs groups into a batch.
        """
        new_groups = [group for group in whole if (group.group_id, group.attempt) not in self._offered]
        if len(new_groups) < max(1, missing) or not (self._asking is None or self._asking.done()):
            return
        if self._asking is not None and self._asking.exception() is not None:
            return  # `get_column` raises it
        self._offered.update((group.group_id, group.attempt) for group in new_groups)
        self._asking = asyncio.create_task(self._learn(assemble(new_groups)))

    async def column(self, batch: Batch) -> Tensor:
        """Return the column of the complete batch, [T]; requests what is not cached. Raises the errors of a
        request.
        """
        request = self._asking
        if request is not None:
            await request
        if not self._known:
            return await self._ask(batch)
        missing = [index for index in range(len(batch)) if not self._knows(batch, index)]
        if missing:
            await self._learn(batch.select(missing))
        column = torch.cat([self._known[name][1] for name in batch.sample_ids])
        await self.close()
        return column

    async def close(self) -> None:
        """Clear the cache and cancel a running request."""
        request, self._asking = self._asking, None
        self._offered.clear()
        self._known.clear()
        if request is not None:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def _learn(self, batch: Batch) -> None:
        """Request the column of a batch and cache it by sample id."""
        column = await self._ask(batch)
        offsets = batch.cu_seqlens.tolist()
        for name, start, end in zip(batch.sample_ids, offsets, offsets[1:], strict=False):
            self._known[name] = batch.tokens[start:end], column[start:end]

    def _knows(self, batch: Batch, index: int) -> bool:
        """Return True if the cached values belong to the same tokens: a group that was requested again has
        others.
        """
        cached = self._known.get(batch.sample_ids[index])
        start, end = batch.cu_seqlens[index : index + 2].tolist()
        return cached is not None and torch.equal(cached[0], batch.tokens[start:end])
