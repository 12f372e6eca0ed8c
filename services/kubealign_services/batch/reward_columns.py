"""Columns and scalars that hold the rewards of a batch by source.

A reward may not apply to a sequence: it scores only some sources of prompts, or its function returns None.
Such a sequence has 0 in the columns of the reward, and 0 in the column applies.NAME, which a batch has only
where the reward does not apply to all sequences.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch

#: Prefix of the sequence columns: a source's raw scores, float64.
RAW = "reward."
#: Prefix of the sequence columns: 1 where a source's reward applies, uint8; absent: it applies to all.
APPLIES = "applies."
#: Prefix of the token columns: raw rewards of a source after parts of a response, at the last token of the
#: part (a turn of an episode, or a step of a response), float64. The rest of the source's raw score follows
#: the response. Absent: all of it does.
OF_TURNS = "turn_reward."
#: Prefix of the token columns: 1 at the last token of each part that a source rewards, uint8, be it with 0.
END_OF_TURN = "turn_end."
#: Token column, float32: the parts of the column rewards that belong to single tokens. Absent: no part does.
TURN_REWARDS = "turn_rewards"
#: Token column, uint8: 1 at the tokens to which the column turn_rewards gives a reward, be it 0.
TURN_ENDS = "turn_ends"
#: Prefix of the sequence columns: a source's rewards, standardised and clipped, before its weight.
TRANSFORMED = "transformed."
#: Prefix of the scalars: the weight of a source.
WEIGHT = "weight."


def add_scores(batch: Batch, name: str, scores: Sequence[float | None]) -> None:
    """Add the raw scores of a source.

    Args:
        scores: One per sequence; None where the reward does not apply.
    """
    values = [0.0 if score is None else score for score in scores]
    batch.sequence_columns[f"{RAW}{name}"] = torch.tensor(values, dtype=torch.float64)
    if any(score is None for score in scores):
        applies = [score is not None for score in scores]
        batch.sequence_columns[f"{APPLIES}{name}"] = torch.tensor(applies, dtype=torch.uint8)


def read_scores(batch: Batch, name: str) -> list[float | None]:
    """Return the raw scores of a source, as `add_scores` takes them."""
    pairs = zip(batch.sequence(f"{RAW}{name}").tolist(), applies_to(batch, name).tolist(), strict=True)
    return [score if applies else None for score, applies in pairs]


def reward_names(batch: Batch) -> list[str]:
    """Return the names of the sources whose raw scores the batch has."""
    return [column[len(RAW) :] for column in batch.sequence_columns if column.startswith(RAW)]


def applies_to(batch: Batch, name: str) -> Tensor:
    """Return True for the sequences to which the reward of a source applies, bool [S]."""
    column = batch.sequence_columns.get(f"{APPLIES}{name}")
    return torch.ones(len(batch), dtype=torch.bool) if column is None else column.bool()


def is_unrewarded(batch: Batch) -> Tensor:
    """Return True for the sequences to which no reward applies, bool [S]; False for all sequences of a batch
    without rewards by source.
    """
    columns = [applies_to(batch, name) for name in reward_names(batch)]
    return ~torch.stack(columns).any(0) if columns else torch.zeros(len(batch), dtype=torch.bool)


def read_sums(batch: Batch) -> list[float | None]:
    """Return the weighted sum of the rewards of each sequence, as `combine_rewards` adds it; None where no
    reward applies.
    """
    pairs = zip(batch.sequence("rewards").tolist(), is_unrewarded(batch).tolist(), strict=True)
    return [None if is_missing else total for total, is_missing in pairs]


def weighted_sum(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of the raw scores of one sample; None if no reward applies to it.

    Args:
        scores: Source -> score; None where it does not apply.
        weights: Source -> weight.
    """
    applying = [weights[name] * score for name, score in scores.items() if score is not None]
    return sum(applying) if applying else None
