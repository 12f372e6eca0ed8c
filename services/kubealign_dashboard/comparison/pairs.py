"""Pairs of responses to the same held-out prompt, from two validations."""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kubealign.validation_record import ValidationRecord


class PairFilter(StrEnum):
    """Pairs to show."""

    ALL = "all"
    DIFFERENT = "different"
    LEFT = "left"
    RIGHT = "right"


class PairOrder(StrEnum):
    """Order of the pairs. DIFFERENCE: largest absolute difference first. GAIN, LOSS: right's score minus
    left's, descending or ascending. ROW: as in the held-out rows.
    """

    DIFFERENCE = "difference"
    GAIN = "gain"
    LOSS = "loss"
    ROW = "row"


@dataclass(frozen=True)
class PromptKey:
    """Identity of a response among those of one validation: the prompt's evaluation set and text, and the
    response's index among those to equal prompts.
    """

    set_name: str
    prompt: str
    index: int

    @cached_property
    def id(self) -> str:
        text = json.dumps([self.set_name, self.prompt, self.index])
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]


@dataclass(frozen=True)
class ResponsePair:
    """Two responses to one prompt."""

    key: PromptKey
    left: ValidationRecord
    right: ValidationRecord

    def difference(self, score: str) -> float | None:
        """Return the right response's score minus the left's; None unless both are finite."""
        left, right = self.left.scores.get(score), self.right.scores.get(score)
        if left is None or right is None or not (math.isfinite(left) and math.isfinite(right)):
            return None
        return right - left


@dataclass(frozen=True)
class ScoreCounts:
    """Outcomes of the pairs by one score: the number where a side has the higher score, where both have the
    same, and where one has none; and the mean of right minus left (None: no pair has both scores).
    """

    left: int
    right: int
    equal: int
    unscored: int
    mean_difference: float | None


@dataclass(frozen=True)
class PairedValidations:
    """Pairs in the order of the left side, and the numbers of responses without a counterpart."""

    pairs: Sequence[ResponsePair]
    unpaired_left: int
    unpaired_right: int

    @property
    def scores(self) -> list[str]:
        """Scores that both sides have, then those of one side, each by name."""
        left = {name for pair in self.pairs for name in pair.left.scores}
        right = {name for pair in self.pairs for name in pair.right.scores}
        return [*sorted(left & right), *sorted(left ^ right)]

    @property
    def set_names(self) -> list[str]:
        """Evaluation sets of the pairs, by name."""
        return sorted({pair.key.set_name for pair in self.pairs})

    def of_set(self, set_name: str | None) -> "PairedValidations":
        """Return the pairs of an evaluation set; None: all."""
        if set_name is None:
            return self
        selected = [pair for pair in self.pairs if pair.key.set_name == set_name]
        return PairedValidations(selected, self.unpaired_left, self.unpaired_right)

    def find(self, pair_id: str) -> ResponsePair | None:
        """Return the pair with this id."""
        return next((pair for pair in self.pairs if pair.key.id == pair_id), None)

    def count(self, score: str) -> ScoreCounts:
        """Count the outcomes by a score."""
        differences = [pair.difference(score) for pair in self.pairs]
        known = [difference for difference in differences if difference is not None]
        return ScoreCounts(
            left=sum(difference < 0 for difference in known),
            right=sum(difference > 0 for difference in known),
            equal=known.count(0),
            unscored=len(differences) - len(known),
            mean_difference=sum(known) / len(known) if known else None,
        )

    def select(self, score: str, show: PairFilter, order: PairOrder) -> list[ResponsePair]:
        """Return the pairs to show. A pair without a difference comes last, in the order of the rows."""
        selected = [pair for pair in self.pairs if _is_selected(pair.difference(score), show)]
        if order is PairOrder.ROW:
            return selected
        sign = {PairOrder.GAIN: -1.0, PairOrder.LOSS: 1.0}

        def rank(pair: ResponsePair) -> float:
            difference = pair.difference(score)
            if difference is None:
                return math.inf
            return -abs(difference) if order is PairOrder.DIFFERENCE else sign[order] * difference

        return sorted(selected, key=rank)


def pair_responses(left: Sequence[ValidationRecord], right: Sequence[ValidationRecord]) -> PairedValidations:
    """Pair the responses to equal prompts of equal evaluation sets.

    Of several responses to one prompt the first is paired with the first, and so on.
    """
    left_by_key, right_by_key = _by_key(left), _by_key(right)
    pairs = [
        ResponsePair(key, record, right_by_key[key])
        for key, record in left_by_key.items()
        if key in right_by_key
    ]
    return PairedValidations(pairs, len(left_by_key) - len(pairs), len(right_by_key) - len(pairs))


def _by_key(records: Sequence[ValidationRecord]) -> dict[PromptKey, ValidationRecord]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    by_key = {}
    for record in records:
        prompt = (record.set_name, record.prompt)
        by_key[PromptKey(*prompt, counts[prompt])] = record
        counts[prompt] += 1
    return by_key


def _is_selected(difference: float | None, show: PairFilter) -> bool:
    if show is PairFilter.ALL:
        return True
    if difference is None:
        return False
    if show is PairFilter.DIFFERENT:
        return difference != 0
    return difference < 0 if show is PairFilter.LEFT else difference > 0
