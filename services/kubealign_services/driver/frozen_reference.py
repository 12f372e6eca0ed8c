"""Reference log-probabilities of given rows, requested once per row and cached."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.frozen_cache import FrozenCache, first_of_each
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.row_scores import RowScores

COLUMN = "reference_logprobs"

#: Returns the reference's log-probabilities of a batch's tokens, float32 [T]. Raises UnrecoverableError,
#: ShutdownRequested.
Ask = Callable[[Batch], Awaitable[Tensor]]


class FrozenReference:
    """Adds reference_logprobs to batches of rows, from the cache or by request."""

    def __init__(self, ask: Ask, kept: FrozenCache) -> None:
        self._ask = ask
        self._kept = kept

    async def read(self, batch: Batch, step: StepFigures) -> None:
        """Add the token column reference_logprobs, float32, 0 outside the responses.

        Raises:
            UnrecoverableError: The log-probabilities have a wrong shape or are not finite.
        """
        with step.phase("reference"):
            cached = self._kept.find(batch)
            missing = [index for index, columns in enumerate(cached) if columns is None]
            step.add({"reference/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                uncached = _bare(batch.select(first_of_each(batch, missing)))
                logprobs = await self._ask(uncached)
                _check(uncached, logprobs)
                self._kept.add(uncached, {COLUMN: logprobs})
                cached = self._kept.find(batch)
            parts = [columns[COLUMN] for columns in cached if columns is not None]
            if len(parts) < len(batch):
                raise JobFailed("cached reference log-probabilities cannot be read back: check the disk")
            batch.token_columns[COLUMN] = torch.cat(parts)


def from_bus(scores: RowScores) -> Ask:
    """Return a request function for a reference that runs in its own processes."""

    async def ask(batch: Batch) -> Tensor:
        replies = [np.frombuffer(score.logprobs, dtype="<f4") for score in await scores.of(batch)]
        for name, reply, length in zip(batch.sample_ids, replies, batch.lengths.tolist(), strict=True):
            if len(reply) != length:
                raise JobFailed(
                    f"the reference sent {len(reply)} log-probabilities for the {length} tokens of {name}"
                )
        return torch.from_numpy(np.concatenate(replies).astype(np.float32))

    return ask


def _bare(batch: Batch) -> Batch:
    """Return the batch with only the columns that a reference reads. Rows have no temperature, so it is 1."""
    mask = {"loss_mask": batch.token("loss_mask")}
    return replace(batch, token_columns=mask, sequence_columns={}, scalars={"temperature": 1.0})


def _check(batch: Batch, logprobs: Tensor) -> None:
    """Raise UnrecoverableError if the log-probabilities have a wrong shape or are not finite."""
    if logprobs.shape != batch.tokens.shape:
        raise JobFailed(
            f"the reference sent log-probabilities of shape {tuple(logprobs.shape)} "
            f"for {len(batch.tokens)} tokens"
        )
    non_finite = (~logprobs.isfinite()).nonzero().flatten()
    if len(non_finite):
        name = batch.sample_ids[int(batch.sequence_of_token[non_finite[0]])]
        raise JobFailed(
            f"the reference's log-probabilities of {name} are not finite: its weights are unusable"
        )
