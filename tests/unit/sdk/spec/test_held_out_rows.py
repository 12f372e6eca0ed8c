"""Held-out rows of a validation and of its sets: inherited settings, names of metrics and of processes."""

from typing import Any

import pytest

from kubealign.roles import roles
from kubealign.spec.dependencies import named_sources
from kubealign.spec.held_out_rows import list_held_out_rows, rows_of_metric
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path
from kubealign.spec.sections.validation import Validation
from support.bad_specs import whole_job

DATA = {"prompts": {"source": {"path": "held"}}}
SCORES = [{"name": "right", "verifier": {"math": {}}}]
SETS: list[dict[str, Any]] = [
    {"name": "math", "data": DATA, "sampling": {"scores": SCORES, "maxTokens": 900}, "everySteps": 7},
    {"name": "code", "data": DATA, "sampling": {"scores": SCORES}, "atStart": False, "rewards": ["exact"]},
]


def validation(**fields: Any) -> Validation:
    return Validation.model_validate({"everySteps": 3, "atEnd": False, "sets": SETS} | fields)


def job(**fields: Any) -> AlignmentJob:
    document = whole_job("rloo")
    document["spec"]["validation"] = {"sets": SETS} | fields
    return AlignmentJob.model_validate(document)


def test_sets_inherit_the_schedule_of_the_validation() -> None:
    own, math, code = list_held_out_rows(validation(data=DATA, groupBy="kind"))
    assert [(rows.every_steps, rows.at_start, rows.at_end) for rows in (own, math, code)] == [
        (3, True, False),
        (7, True, False),
        (3, False, False),
    ]
    assert [rows.group_by for rows in (own, math, code)] == ["kind", None, None]
    assert [rows.field("groupBy") for rows in (own, code)] == [
        "spec.validation.groupBy",
        "spec.validation.sets[1].groupBy",
    ]


def test_a_validation_of_sets_alone_has_no_rows_of_its_own() -> None:
    assert [rows.name for rows in list_held_out_rows(validation())] == ["math", "code"]
    assert list_held_out_rows(None) == ()


def test_scores_of_the_same_name_in_two_sets_are_processes_and_metrics_of_their_own() -> None:
    spec = job().spec
    assert [score.name for score in spec.validation_scores] == ["math-right", "code-right"]
    assert {"reward-math-right-0", "reward-code-right-0"} <= {process.name for process in roles(job())}
    assert spec.scorer("code-right").verifier is not None
    math, code = spec.held_out_rows
    assert math.score_metrics() == {"math-right": "val/math/right"}
    assert [format_path(path) for path, _ in code.score_fields()] == ["validation.sets[1].sampling.scores[0]"]


def test_a_set_is_scored_by_the_rewards_that_it_names() -> None:
    spec = job(data=DATA).spec
    (exact,) = spec.rewards
    assert [rows.is_scored_by(exact) for rows in spec.held_out_rows] == [True, False, True]


def test_the_longest_response_is_that_of_any_rows() -> None:
    assert job().spec.max_sampled_tokens == 900
    assert job(sets=SETS[1:]).spec.max_sampled_tokens == job().spec.rollout.sampling.max_tokens


def test_a_set_that_samples_needs_rollout_workers() -> None:
    document = whole_job("sft")
    rows = {"demonstrations": {"source": {"path": "held"}}}
    document["spec"]["validation"] = {"sets": [{"name": "a", "data": rows}]}
    assert not AlignmentJob.model_validate(document).spec.samples
    document["spec"]["validation"]["sets"][0]["sampling"] = {}
    assert AlignmentJob.model_validate(document).spec.samples


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("val/math/right/pass@4", "math"),
        ("val/code/response_length", "code"),
        ("val/mathematics/right", None),
        ("val/right", None),
    ],
)
def test_a_metric_belongs_to_the_rows_of_its_prefix(metric: str, name: str | None) -> None:
    rows = rows_of_metric(metric, list_held_out_rows(validation(data=DATA)))
    assert rows is not None and rows.name == name
    without_own = rows_of_metric(metric, list_held_out_rows(validation()))
    assert (without_own is None) == (name is None)


def test_the_sources_of_sets_are_sources_of_the_job() -> None:
    fields = [format_path(path) for path, _ in named_sources(job(data=DATA))]
    assert fields[1:] == [
        "spec.validation.data.prompts.source",
        "spec.validation.sets[0].data.prompts.source",
        "spec.validation.sets[1].data.prompts.source",
    ]
