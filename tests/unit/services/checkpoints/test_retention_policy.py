"""Retention of checkpoints: the newest and the best, against a slow search."""

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.lifecycle import Checkpoint, KeepBest
from kubealign_services.checkpoints.retention_policy import RetentionPolicy

_SCORES = st.lists(st.none() | st.sampled_from([-1.0, 0.0, 0.5, 1.0]), max_size=7)


def state(step: int = 4, validated_step: int | None = 4, **metrics: float) -> dict[str, Any]:
    named = {f"val/{name}": value for name, value in metrics.items()}
    return {"step": step, "validated_step": validated_step, "validation": named}


def policy(order: str = "Highest", count: int = 1, keep: int = 1) -> RetentionPolicy:
    best = KeepBest.model_validate({"metric": "val/exact", "order": order, "count": count})
    return RetentionPolicy(keep, best)


def test_the_policy_of_a_job() -> None:
    spec = Checkpoint.model_validate({"keep": 3, "keepBest": {"metric": "val/loss", "order": "Lowest"}})
    chosen = RetentionPolicy.of(spec)
    assert (chosen.keep, chosen.best) == (3, spec.keep_best)
    assert RetentionPolicy.of(Checkpoint()) == RetentionPolicy(2)
    assert RetentionPolicy.of(Checkpoint.model_validate({"keepEverySteps": 9})) == RetentionPolicy(2, None, 9)


@pytest.mark.parametrize(
    ("driver_state", "expected"),
    [
        (state(exact=0.25), 0.25),
        (state(exact=0), 0.0),
        (state(loss=0.25), None),
        (state(exact=math.nan), None),
        (state(exact=math.inf), None),
        # The metrics are those of an earlier step.
        (state(validated_step=3, exact=0.25), None),
        (state(validated_step=None), None),
        ({"step": 4}, None),
    ],
)
def test_the_score_of_a_checkpoint(driver_state: dict[str, Any], expected: float | None) -> None:
    assert policy().score(driver_state) == expected
    assert policy("Lowest").score(driver_state) == (None if expected is None else -expected)
    assert RetentionPolicy(1).score(driver_state) is None


@given(scores=_SCORES, keep=st.integers(1, 3), count=st.integers(1, 3))
def test_what_stays(scores: list[float | None], keep: int, count: int) -> None:
    table = dict(enumerate(scores))
    stays = policy(keep=keep, count=count).retained(table, int)
    newest = set(range(max(0, len(scores) - keep), len(scores)))
    scored = [step for step, score in table.items() if score is not None]
    # The choice of `count` scored checkpoints with the highest sum; on a tie the one with earlier steps.
    choices = combinations(scored, min(count, len(scored)))
    best = max(choices, key=lambda chosen: (sum(table[step] or 0.0 for step in chosen), -sum(chosen)))
    assert stays == newest | set(best)


def test_the_newest_checkpoint_of_each_multiple_stays_beside_the_others() -> None:
    # Step 4 was committed twice, by two drivers; the second is the newer.
    steps = {"a": 2, "b": 3, "c": 4, "d": 4, "e": 6, "f": 7, "g": 9}
    scores: dict[str, float | None] = dict.fromkeys(steps) | {"b": 0.5}
    every_second = replace(policy(), every_steps=2)
    assert every_second.retained(scores, steps.__getitem__) == {"a", "b", "d", "e", "g"}
    assert RetentionPolicy(1, every_steps=3).retained(scores, steps.__getitem__) == {"b", "e", "g"}
    assert RetentionPolicy(1, every_steps=10).retained(scores, steps.__getitem__) == {"g"}


@given(scores=_SCORES, score=st.sampled_from([-1.0, 0.0, 0.5, 1.0]), count=st.integers(1, 3))
def test_a_checkpoint_is_among_the_best_if_it_would_stay(
    scores: list[float | None], score: float, count: int
) -> None:
    new, later = len(scores), len(scores) + 1
    stays = policy(count=count).retained({**dict(enumerate(scores)), new: score, later: None}, int)
    assert policy(count=count).is_among_best(score, scores) is (new in stays)
