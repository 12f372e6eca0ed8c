"""What a method in rounds is. Pure.

At a round's start responses to prompts are sampled from the weights there are; the method makes rows of
them, which the steps of the round learn from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import torch

from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch, pack


@dataclass(frozen=True)
class Response:
    """A response to a prompt. name: unique in the round. tokens: at least one. reward: None where nobody
    could say."""

    name: str
    tokens: Sequence[int]
    reward: float | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt with the responses sampled to it, and its demonstration where the data has one."""

    name: str
    tokens: Sequence[int]
    responses: Sequence[Response]
    demonstration: Sequence[int] | None = None


@dataclass(frozen=True)
class Row:
    """What is learned together: responses to one prompt, in the order in which the objective reads them."""

    prompt: Prompt
    responses: tuple[Response, ...]


@dataclass(frozen=True)
class RoundRows:
    """The rows of a round, each of as many responses as the objective's unit. figures: under round/.

    why_none: where there are no rows, why. learned_out: there are none because nothing is left to learn.
    """

    rows: list[Row]
    figures: dict[str, float] = field(default_factory=dict)
    why_none: str = ""
    learned_out: bool = False


class RoundAlgorithm(Algorithm, Protocol):
    """An algorithm that says what a round's rows are. With `needs_reference` these get the log-probabilities
    of the weights that the round begins with."""

    def rows(self, prompts: Sequence[Prompt]) -> RoundRows:
        """Rows of a round. The prompts are in the order in which they were asked for."""


def rewarded(prompt: Prompt) -> list[Response]:
    """The responses with a reward, the best first; of equals the one that was sampled first."""
    known = [response for response in prompt.responses if response.reward is not None]
    return sorted(known, key=lambda response: -float(response.reward or 0.0))


def reward_mean(responses: Sequence[Response]) -> float:
    """Of those whose reward is known; there is at least one."""
    return fmean(response.reward for response in responses if response.reward is not None)


def pack_rows(rows: Sequence[Row]) -> Batch:
    """The rows' sequences side by side, named for their responses. Token column loss_mask: uint8 [T], 1 on
    the responses' tokens."""
    pairs = [(row.prompt.tokens, response) for row in rows for response in row.responses]
    batch = pack(
        [[*prompt, *response.tokens] for prompt, response in pairs], [response.name for _, response in pairs]
    )
    mask = [bit for prompt, response in pairs for bit in [0] * len(prompt) + [1] * len(response.tokens)]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    return batch
