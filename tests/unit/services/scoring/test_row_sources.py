"""Rewards of some sources of prompts: the scorer never sees the others."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.scoring.row_sources import MissingSource, is_of_source, restrict_to_sources
from kubealign_services.scoring.worker import empty_score, read_reward


def rollout(sample: int, columns: dict[str, Any]) -> rollout_pb2.Rollout:
    context = {"prompt": "p", "columns": columns}
    return rollout_pb2.Rollout(group_id="0/7", sample=sample, columns=json.dumps(context).encode())


class Recorder:
    """Scores each rollout by its number, and records the numbers."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        self.calls.append([each.sample for each in rollouts])
        scores = [empty_score(each, "exact", "w") for each in rollouts]
        for score in scores:
            score.reward = 10.0 * score.sample
        return scores


async def test_only_rollouts_of_the_sources_are_scored() -> None:
    recorder = Recorder()
    scorer = restrict_to_sources(recorder, "exact", "w", ["sums", "digits"])
    sources = ["sums", "poems", "digits", "poems"]
    scores = await scorer([rollout(i, {"source": source}) for i, source in enumerate(sources)])
    assert recorder.calls == [[0, 2]]
    assert [read_reward(score) for score in scores] == [0.0, None, 20.0, None]
    assert [(score.sample, score.source, score.error) for score in scores] == [
        (i, "exact", "") for i in range(4)
    ]


async def test_a_model_is_not_called_without_a_rollout_of_its_sources() -> None:
    recorder = Recorder()
    scores = await restrict_to_sources(recorder, "exact", "w", ["sums"])([rollout(0, {"source": "poems"})])
    assert recorder.calls == [] and read_reward(scores[0]) is None


def test_a_reward_of_all_sources_is_not_restricted() -> None:
    recorder = Recorder()
    assert restrict_to_sources(recorder, "exact", "w", None) is recorder


async def test_a_row_that_does_not_tell_its_source_is_an_error() -> None:
    """Rows of validation, which is no mixture."""
    recorder = Recorder()
    (score,) = await restrict_to_sources(recorder, "exact", "w", ["sums"])([rollout(0, {"answer": 4})])
    assert score.permanent and recorder.calls == []
    assert "reward exact scores the sources sums, and the row has no column 'source'" in score.error
    with pytest.raises(MissingSource, match=r"set values: \{source: NAME\}"):
        is_of_source({}, ["sums"], "exact")
    assert not is_of_source({"source": None}, ["sums"], "exact")
