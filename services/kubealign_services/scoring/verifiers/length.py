"""Rewards of the length of a response in tokens."""

import math
from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import CosineLength, LengthVerifier, LinearLength
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.contract import Verifier


def length_verifier(spec: LengthVerifier) -> Verifier:
    if spec.linear is not None:
        return LinearReward(spec.linear)
    assert spec.cosine is not None
    return CosineReward(spec.cosine)


class LinearReward:
    """1 up to a length, falling linearly to 0."""

    def __init__(self, spec: LinearLength) -> None:
        self._spec = spec

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        full, zero = self._spec.full_tokens, self._spec.zero_tokens
        tokens: int = row[RESPONSE_LENGTH]
        return RewardResult(
            min(1.0, max(0.0, (zero - tokens) / (zero - full))), explanation=f"{tokens} tokens"
        )


class CosineReward:
    """The cosine reward of Yeo et al. (2025), see `CosineLength`."""

    def __init__(self, spec: CosineLength) -> None:
        # sympy, which math-verify needs, takes a second to import.
        from kubealign_services.scoring.verifiers.mathematics import MathAnswer

        self._spec = spec
        self._math = MathAnswer(spec.math)

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        verdict = self._math.score(response, row)
        if verdict.reward is None:
            return verdict
        explanation = f"{row[RESPONSE_LENGTH]} tokens; {verdict.explanation}"
        share = row[RESPONSE_LENGTH] / self._spec.max_tokens
        if share >= 1:
            return RewardResult(self._spec.exceeded, explanation=explanation)
        ends = self._spec.correct if verdict.reward else self._spec.wrong
        reward = ends.longest + (ends.shortest - ends.longest) * (1 + math.cos(math.pi * share)) / 2
        return RewardResult(reward, explanation=explanation)
