"""Annotated rows."""

from typing import Any

import pytest

from kubealign.spec.algorithms import AnnotateSpec
from kubealign.spec.sections.data import DemonstrationDataset
from kubealign.v1.scoring_pb2 import Score
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.data_generation.annotation import (
    build_annotations,
    build_demonstration,
    get_response_text,
)
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.batch_metrics import score_detail_metrics

OWN = ("prompt", "response", "messages")


def scores_by_source(**rewards: Any) -> dict[str, Score]:
    """Return scores by source. A number is a reward; a dict holds the scores of a model with several."""
    return {
        name: Score(source=name, reward=sum(score.values()), attributes=score)
        if isinstance(score, dict)
        else Score(source=name, reward=score)
        for name, score in rewards.items()
    }


def test_one_column_per_reward_or_score() -> None:
    scores = scores_by_source(short=0.5, steer={"good": 3.25, "bad": -1.0})
    assert build_annotations(scores, AnnotateSpec(), OWN) == {"short": 0.5, "bad": -1.0, "good": 3.25}


@pytest.mark.parametrize(
    ("score", "column"), [(-0.7, 0), (0.4, 0), (0.6, 1), (2.0, 2), (3.7, 4), (9.5, 4), (4.0, 4)]
)
def test_scores_are_clamped_and_rounded(score: float, column: int) -> None:
    entry = AnnotateSpec(round_to_integers=True, lowest=0, highest=4)
    column_value = build_annotations(scores_by_source(good=score), entry, OWN)["good"]
    assert column_value == column and isinstance(column_value, int)


def test_bounds_alone() -> None:
    assert [
        build_annotations(scores_by_source(good=score), AnnotateSpec(lowest=-1.5, highest=1.25), OWN)["good"]
        for score in (-2.0, 0.1, 3.0)
    ] == [-1.5, 0.1, 1.25]


def test_two_columns_of_one_name_are_rejected() -> None:
    both = scores_by_source(steer={"good": 1.0, "bad": 0.0}, good=2.0)
    with pytest.raises(
        UnrecoverableError, match="good gives a score good, which is the name of another reward's"
    ):
        build_annotations(both, AnnotateSpec(), OWN)
    with pytest.raises(
        UnrecoverableError, match="steer gives a score response, which is the name of prompt or"
    ):
        build_annotations(scores_by_source(steer={"response": 1.0, "kind": 2.0}), AnnotateSpec(), OWN)


def test_text_rows_keep_their_columns_under_default_names() -> None:
    data = DemonstrationDataset.model_validate(
        {"source": {"path": "x"}, "format": {"text": {"prompt": "question", "response": "answer"}}}
    )
    row = PreparedRow(0, [1], "1+1=", {"answer": "2", "level": 3})
    assert get_response_text(data, row) == "2"
    assert build_demonstration(data, row) == {"level": 3, "prompt": "1+1=", "response": "2"}
    # The model reads the template's prompt; the row holds the columns it was built from.
    shaped = PreparedRow(0, [1], "Q: 1+1=", {"question": "1+1=", "answer": "2"})
    assert build_demonstration(data, shaped) == {"prompt": "1+1=", "response": "2"}
    assert row.columns == {"answer": "2", "level": 3}, "the row is as it was"


def test_chat_rows_keep_their_messages() -> None:
    data = DemonstrationDataset.model_validate(
        {"source": {"path": "x"}, "format": {"chat": {"messages": "talk"}}}
    )
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    row = PreparedRow(0, [1], "User:\nhello\n\n", {"talk": talk, "level": 3})
    assert get_response_text(data, row) == "good day"
    assert build_demonstration(data, row) == {"level": 3, "messages": talk}


def test_metrics_of_attributes_and_disagreement() -> None:
    scores = [
        *scores_by_source(steer={"good": 1.0, "bad": 0.0}).values(),
        *scores_by_source(steer={"good": 2.0, "bad": 1.0}).values(),
    ]
    scores += [Score(source="both", reward=1.0, disagreement=spread) for spread in (0.5, 0.0)]
    scores += scores_by_source(short=1.0).values()
    assert score_detail_metrics(scores) == {
        "reward/steer/good": 1.5,
        "reward/steer/bad": 0.5,
        "reward/both/disagreement": 0.25,
    }
