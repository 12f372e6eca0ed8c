"""The reference's log-probabilities of given rows, asked for once."""

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

#: float32 [T], the reference's log-probabilities of a batch's tokens. Raises JobFailed, Stopping.
Ask = Callable[[Batch], Awaitable[Tensor]]


class FrozenReference:
    """Adds reference_logprobs to batches of rows, from what is kept, or by asking."""

    def __init__(self, ask: Ask, kept: FrozenCache) -> None:
        self._ask = ask
        self._kept = kept

    async def read(self, batch: Batch, step: StepFigures) -> None:
        """Add the token column reference_logprobs, float32, 0 outside the responses. Raises JobFailed where
        the reference's numbers are of no use."""
        with step.phase("reference"):
            known = self._kept.find(batch)
            missing = [index for index, columns in enumerate(known) if columns is None]
            step.add({"reference/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                part = _bare(batch.select(first_of_each(batch, missing)))
                found = await self._ask(part)
                _check(part, found)
                self._kept.add(part, {COLUMN: found})
                known = self._kept.find(batch)
            parts = [columns[COLUMN] for columns in known if columns is not None]
            if len(parts) < len(batch):
                raise JobFailed("what the reference said was written and cannot be read: is the disk sound?")
            batch.token_columns[COLUMN] = torch.cat(parts)


def from_bus(scores: RowScores) -> Ask:
    """A reference with processes of its own."""

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
    """It with what a reference reads. Rows have no temperature."""
    mask = {"loss_mask": batch.token("loss_mask")}
    return replace(batch, token_columns=mask, sequence_columns={}, scalars={"temperature": 1.0})


def _check(batch: Batch, found: Tensor) -> None:
    if found.shape != batch.tokens.shape:
        raise JobFailed(
            f"the reference sent log-probabilities of shape {tuple(found.shape)} "
            f"for {len(batch.tokens)} tokens"
        )
    bad = (~found.isfinite()).nonzero().flatten()
    if len(bad):
        name = batch.sample_ids[int(batch.sequence_of_token[bad[0]])]
        raise JobFailed(
            f"the reference's log-probabilities of {name} are not finite: its weights are of no use"
        )
