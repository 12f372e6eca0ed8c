"""Contract of iterative algorithms, which learn in rounds. Pure.

At the start of a round responses to prompts are sampled from the current weights; the algorithm builds
rows from the responses, and the steps of the round learn from the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import torch

from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch, pack


@dataclass(frozen=True)
class RoundResponse:
    """A response to a prompt.

    name: unique in the round. tokens: at least one. reward: None where it could not be scored.
    """

    name: str
    tokens: Sequence[int]
    reward: float | None = None


@dataclass(frozen=True)
class RoundPrompt:
    """A prompt with the responses sampled to it, and its demonstration where the data has one."""

    name: str
    tokens: Sequence[int]
    responses: Sequence[RoundResponse]
    demonstration: Sequence[int] | None = None


@dataclass(frozen=True)
class RoundRow:
    """Responses to one prompt that are learned together, in the order in which the objective reads them."""

    prompt: RoundPrompt
    responses: tuple[RoundResponse, ...]


@dataclass(frozen=True)
class RoundRows:
    """Rows of a round, each with as many responses as the objective's unit. metrics: under round/.

    empty_reason: cause, where no rows are left. is_converged: no rows are left because nothing remains to
    learn.
    """

    rows: list[RoundRow]
    metrics: dict[str, float] = field(default_factory=dict)
    empty_reason: str = ""
    is_converged: bool = False


class RoundAlgorithm(Algorithm, Protocol):
    """An algorithm that selects a round's rows.

    With `needs_reference` the rows get the log-probabilities of the weights at the start of the round.
    """

    def rows(self, prompts: Sequence[RoundPrompt]) -> RoundRows:
        """Return the rows of a round. The prompts are in the order of their requests."""


def rank_by_reward(prompt: RoundPrompt) -> list[RoundResponse]:
    """Return the responses with a reward, the best first; among equals the one sampled first."""
    known = [response for response in prompt.responses if response.reward is not None]
    return sorted(known, key=lambda response: -float(response.reward or 0.0))


def mean_reward(responses: Sequence[RoundResponse]) -> float:
    """Return the mean of the known rewards, of which there is at least one."""
    return fmean(response.reward for response in responses if response.reward is not None)


def pack_rows(rows: Sequence[RoundRow]) -> Batch:
    """Pack the rows' sequences, named after their responses.

    Token column loss_mask: uint8 [T], 1 on the responses' tokens.
    """
    pairs = [(row.prompt.tokens, response) for row in rows for response in row.responses]
    batch = pack(
        [[*prompt, *response.tokens] for prompt, response in pairs], [response.name for _, response in pairs]
    )
    mask = [bit for prompt, response in pairs for bit in [0] * len(prompt) + [1] * len(response.tokens)]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    return batch
