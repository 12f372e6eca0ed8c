"""Preferences of the policy between two of its responses by a principle (Bai et al. 2022, section 4).

With l(x, y) the log-probability of the answers "the first is better" and "the second is better" to the
question about x and y in this order,

    p(x, y) = exp l_first(x, y) / (exp l_first(x, y) + exp l_second(x, y))
    P(a is better than b) = (p(a, b) + 1 - p(b, a)) / 2

so that a policy that always says "the first" has no preference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kubealign.spec.algorithms import PairwiseComparison
from kubealign_services.batch.codec import decode
from kubealign_services.roles.driver.data_generation.critique_revision import TOO_LONG, sample_principle
from kubealign_services.roles.driver.data_generation.requests import (
    PolicyRequest,
    PromptRenderer,
    RequestClient,
)
from kubealign_services.roles.driver.data_generation.row_format import RowFormatter
from kubealign_services.roles.driver.data_generation.samples import PolicySample, group_by_prompt
from kubealign_services.roles.driver.data_generation.selection import build_preference
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup


@dataclass(frozen=True)
class SamplePair:
    """Two samples of one prompt and the principle of their comparison."""

    first: PolicySample
    second: PolicySample
    principle: str

    @property
    def name(self) -> str:
        """Name that is unique among pairs."""
        return f"{self.first.row.row}/{self.first.number // 2}"


class PairwiseComparator:
    """Row selector that turns each pair of samples into a preference.

    The probability of the preference becomes chosen_rating and its complement rejected_rating. Pairs of
    equal responses, and ties, give no row.
    """

    def __init__(
        self,
        spec: PairwiseComparison,
        client: RequestClient,
        prompts: PromptRenderer,
        row_formatter: RowFormatter,
        seed: int,
    ) -> None:
        self._spec = spec
        self._client = client
        self._prompts = prompts
        self._row_formatter = row_formatter
        self._seed = seed

    async def __call__(
        self, samples: Sequence[PolicySample], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        with step.phase("compare"):
            pairs = self._pairs(samples, state)
            shares = await self._ask_policy(pairs, state)
        rows = [self._build_row(pair, *shares[pair.name], state) for pair in pairs if pair.name in shares]
        if shares:
            step.add(
                {
                    "comparison/confidence": fmean(
                        abs(2 * preference_probability(*orders) - 1) for orders in shares.values()
                    ),
                    "comparison/first_share": fmean(p for orders in shares.values() for p in orders),
                }
            )
        return [row for row in rows if row is not None]

    def _pairs(self, samples: Sequence[PolicySample], state: DataGenerationState) -> list[SamplePair]:
        """Pair the samples of each prompt and draw a principle for each pair."""
        pairs = []
        for group in group_by_prompt(samples):
            numbered = {sample.number: sample for sample in group}
            for number in sorted(numbered):
                if number % 2 or number + 1 not in numbered:
                    continue
                first, second = numbered[number], numbered[number + 1]
                if first.text == second.text:
                    state.count_skipped("alike")
                    continue
                name = f"{first.row.row}/{number // 2}"
                pairs.append(
                    SamplePair(first, second, sample_principle(self._spec.principles, self._seed, name))
                )
        return pairs

    async def _ask_policy(
        self, pairs: Sequence[SamplePair], state: DataGenerationState
    ) -> dict[str, tuple[float, float]]:
        """Return pair name -> probability of the first answer, in either order of the responses."""
        continuations = tuple(self._prompts.encode_answer(text) for text in self._spec.answers)
        orders = [(pair, order) for pair in pairs for order in range(2)]
        tokens = self._prompts.render(
            self._spec.prompt,
            [self._template_values(*pair_order) for pair_order in orders],
            max(map(len, continuations)),
        )
        fitting = {
            pair.name: list(prompts)
            for pair, *prompts in zip(pairs, tokens[::2], tokens[1::2], strict=True)
            if None not in prompts
        }
        state.count_skipped(TOO_LONG, len(pairs) - len(fitting))
        questions = [
            PolicyRequest(f"compare.{order}/{name}", prompt, continuations=continuations)
            for name, prompts in fitting.items()
            for order, prompt in enumerate(prompts)
            if prompt is not None
        ]
        groups = await self._client(questions, len(continuations), state)
        shares = {name: first_share(*_continuation_logprobs(group)) for name, group in groups.items()}
        return {
            name: (shares[f"compare.0/{name}"], shares[f"compare.1/{name}"])
            for name in fitting
            if f"compare.0/{name}" in shares and f"compare.1/{name}" in shares
        }

    def _template_values(self, pair: SamplePair, order: int) -> dict[str, str]:
        texts = [pair.first.text, pair.second.text]
        first, second = texts if order == 0 else reversed(texts)
        return {
            "prompt": self._row_formatter.show_prompt(pair.first.row),
            "first": first,
            "second": second,
            "principle": pair.principle,
        }

    def _build_row(
        self, pair: SamplePair, forward: float, backward: float, state: DataGenerationState
    ) -> dict[str, Any] | None:
        """Build the preference row of a pair; None for a tie."""
        probability = preference_probability(forward, backward)
        if probability == 0.5:
            state.count_skipped("ties")
            return None
        sides = (pair.first, pair.second) if probability > 0.5 else (pair.second, pair.first)
        row = build_preference(*sides, self._row_formatter)
        rating = max(probability, 1 - probability)
        return row | {"principle": pair.principle, "chosen_rating": rating, "rejected_rating": 1 - rating}


def first_share(first: float, second: float) -> float:
    """Return the first answer's share of the two answers' probability; log-probabilities in nats."""
    return 1 / (1 + math.exp(min(second - first, 700.0)))


def preference_probability(forward: float, backward: float) -> float:
    """Return the probability that one response is better than the other.

    Args:
        forward: First answer's share where the one response comes first.
        backward: First answer's share where the other comes first.
    """
    return (forward + 1 - backward) / 2


def _continuation_logprobs(group: RolloutGroup) -> list[float]:
    """Return the log-probability of each given answer, in order."""
    sequences = [decode(group.rollouts[number].sequence) for number in sorted(group.rollouts)]
    return [
        float(sequence.token("engine_logprobs")[sequence.token("loss_mask").bool()].double().sum())
        for sequence in sequences
    ]
