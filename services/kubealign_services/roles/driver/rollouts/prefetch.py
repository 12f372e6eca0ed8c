"""Prefetches what trainer and critic compute of finished groups while the rest of the batch is still being
generated: old log-probabilities, values, and the outputs of the frozen models that they host.

Trainer and critic hold the weights that the step starts from and are idle meanwhile. A request is sent
once at least as many groups are generated as are missing, scored or not. A batch of n groups thus needs
about log2(n) requests, each over many sequences, and little is left to request at the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup

#: Returns float32 [N] or [N, K], one value or K values for each of the N tokens or sequences.
ForwardCall = Callable[[Batch], Awaitable[Tensor]]


class ForwardPrefetcher:
    """Prefetcher of the columns that one forward pass over a step's batch computes.

    Args:
        forward: Computes the columns of a batch.
        per_sequence: There is one value for each sequence; otherwise one for each token.
    """

    def __init__(self, forward: ForwardCall, per_sequence: bool = False) -> None:
        self._forward = forward
        self._per_sequence = per_sequence
        self._submitted: set[tuple[str, int]] = set()
        #: Sample id -> (tokens, values).
        self._cache: dict[str, tuple[Tensor, Tensor]] = {}
        self._request: asyncio.Task[None] | None = None

    def submit_ready(
        self,
        groups: Sequence[RolloutGroup],
        missing: int,
        assemble: Callable[[Sequence[RolloutGroup]], Batch],
    ) -> None:
        """Request the column for new groups if there are enough of them and no request is running.

        Args:
            groups: Groups of the coming batch, all samples present.
            missing: Number of groups that the batch still lacks.
            assemble: Packs groups into a batch.
        """
        new_groups = [group for group in groups if (group.group_id, group.attempt) not in self._submitted]
        if len(new_groups) < max(1, missing) or not (self._request is None or self._request.done()):
            return
        if self._request is not None and self._request.exception() is not None:
            return  # `get_column` raises it
        self._submitted.update((group.group_id, group.attempt) for group in new_groups)
        self._request = asyncio.create_task(self._fetch(assemble(new_groups)))

    async def get_column(self, batch: Batch) -> Tensor:
        """Return the values of the complete batch, [N] or [N, K]; requests what is not cached.

        Raises the errors of a request.
        """
        request = self._request
        if request is not None:
            await request
        if not self._cache:
            return await self._forward(batch)
        missing = [index for index in range(len(batch)) if not self._is_cached(batch, index)]
        if missing:
            await self._fetch(batch.select(missing))
        column = torch.cat([self._cache[name][1] for name in batch.sample_ids])
        await self.close()
        return column

    async def close(self) -> None:
        """Clear the cache and cancel a running request."""
        request, self._request = self._request, None
        self._submitted.clear()
        self._cache.clear()
        if request is not None:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def _fetch(self, batch: Batch) -> None:
        """Request the column of a batch and cache it by sample id."""
        column = await self._forward(batch)
        offsets = batch.cu_seqlens.tolist()
        for index, name in enumerate(batch.sample_ids):
            tokens = slice(offsets[index], offsets[index + 1])
            values = column[index : index + 1] if self._per_sequence else column[tokens]
            self._cache[name] = batch.tokens[tokens], values

    def _is_cached(self, batch: Batch, index: int) -> bool:
        """Return True if the cached values belong to the same tokens: a group that was requested again has
        others.
        """
        cached = self._cache.get(batch.sample_ids[index])
        start, end = batch.cu_seqlens[index : index + 2].tolist()
        return cached is not None and torch.equal(cached[0], batch.tokens[start:end])
