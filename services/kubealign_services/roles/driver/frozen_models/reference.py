"""Reference log-probabilities of given rows, requested once per row and cached, and those of samples after
hinted prompts.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.batch.replaced_prompts import PromptMismatch
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache, select_unique
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.metrics.report import StepRecord

COLUMN = "reference_logprobs"

#: Returns the reference's log-probabilities of a batch's tokens, float32 [T]. Raises UnrecoverableError,
#: ShutdownRequested.
LogprobsRequest = Callable[[Batch], Awaitable[Tensor]]


class FrozenReference:
    """Adds reference_logprobs to batches of rows, from the cache or by request."""

    def __init__(self, request_logprobs: LogprobsRequest, cache: FrozenScoreCache) -> None:
        self._request_logprobs = request_logprobs
        self._cache = cache

    async def add_columns(self, batch: Batch, step: StepRecord) -> None:
        """Add the token column reference_logprobs, float32, 0 outside the responses.

        Raises:
            UnrecoverableError: The log-probabilities have a wrong shape or are not finite.
        """
        with step.phase("reference"):
            cached = self._cache.find(batch)
            missing = [index for index, columns in enumerate(cached) if columns is None]
            step.add({"reference/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                uncached = _reference_inputs(batch.select(select_unique(batch, missing)))
                logprobs = await self._request_logprobs(uncached)
                _check_logprobs(uncached, logprobs)
                self._cache.add(uncached, {COLUMN: logprobs})
                cached = self._cache.find(batch)
            parts = [columns[COLUMN] for columns in cached if columns is not None]
            if len(parts) < len(batch):
                raise UnrecoverableError(
                    "cached reference log-probabilities cannot be read back: check the disk"
                )
            batch.token_columns[COLUMN] = torch.cat(parts)


def request_over_bus(scores: RowScorer) -> LogprobsRequest:
    """Return a request function for a reference that runs in its own processes."""

    async def ask(batch: Batch) -> Tensor:
        replies = [np.frombuffer(score.logprobs, dtype="<f4") for score in await scores.score(batch)]
        for name, reply, length in zip(batch.sample_ids, replies, batch.lengths.tolist(), strict=True):
            if len(reply) != length:
                raise UnrecoverableError(
                    f"the reference sent {len(reply)} log-probabilities for the {length} tokens of {name}"
                )
        return torch.from_numpy(np.concatenate(replies).astype(np.float32))

    return ask


async def score_hinted(request_logprobs: LogprobsRequest, prompts: TeacherPrompts, batch: Batch) -> Tensor:
    """Return log-probabilities of the batch's responses after the hinted prompts, float32 [T]; 0 at the
    prompts.

    Raises:
        UnrecoverableError: A sequence does not begin with its row's prompt.
    """
    try:
        replaced = prompts.replace(batch)
    except PromptMismatch as error:
        raise UnrecoverableError(str(error)) from error
    return replaced.restore(await request_logprobs(replaced.batch))


def _reference_inputs(batch: Batch) -> Batch:
    """Return the batch with only the columns that a reference reads. Rows have no temperature, so it is 1."""
    mask = {"loss_mask": batch.token("loss_mask")}
    return replace(batch, token_columns=mask, sequence_columns={}, scalars={"temperature": 1.0})


def _check_logprobs(batch: Batch, logprobs: Tensor) -> None:
    """Raise UnrecoverableError if the log-probabilities have a wrong shape or are not finite."""
    if logprobs.shape != batch.tokens.shape:
        raise UnrecoverableError(
            f"the reference sent log-probabilities of shape {tuple(logprobs.shape)} "
            f"for {len(batch.tokens)} tokens"
        )
    non_finite = (~logprobs.isfinite()).nonzero().flatten()
    if len(non_finite):
        name = batch.sample_ids[int(batch.sequence_of_token[non_finite[0]])]
        raise UnrecoverableError(
            f"the reference's log-probabilities of {name} are not finite: its weights are unusable"
        )
