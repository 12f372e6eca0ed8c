"""Spec of evaluations: data of the validation, steps of the models, and the refused settings of training."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubealign.roles import roles
from kubealign.spec.algorithms import ResultKind
from kubealign.spec.dependencies import named_models, result_references
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import load_jobs

PROMPTS = {"prompts": {"source": {"path": "/held/prompts.jsonl"}}}
OTHER_PROMPTS = {"prompts": {"source": {"path": "/other/prompts.jsonl"}}}
CHECKPOINTS = [
    {"step": 40, "model": {"job": {"name": "late"}}},
    {"step": 20, "model": {"path": "/models/20"}},
]


def document(entry: dict[str, Any], **spec: Any) -> dict[str, Any]:
    parts = {
        "algorithm": {"evaluate": entry},
        "policy": {"model": {"path": "/models/base"}},
        "validation": {"data": PROMPTS},
    }
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "measured"},
        "spec": parts | spec,
    }


def errors(folder: Path, job: dict[str, Any]) -> dict[str, str]:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    with pytest.raises(SpecErrors) as caught:
        load_jobs(path)
    return {error.path: error.message for error in caught.value.errors}


def test_the_data_are_those_of_the_validation() -> None:
    job = AlignmentJob.model_validate(document({}))
    assert job.spec.validation is not None
    assert job.spec.data == job.spec.validation.data
    assert AlignmentJob.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_without_validation_data_the_data_are_those_of_the_first_set() -> None:
    sets = [{"name": "sums", "data": OTHER_PROMPTS}, {"name": "held", "data": PROMPTS}]
    spec = AlignmentJob.model_validate(document({}, validation={"sets": sets})).spec
    assert spec.validation is not None
    assert spec.data == spec.validation.sets[0].data
    both = AlignmentJob.model_validate(document({}, validation={"data": PROMPTS, "sets": sets})).spec
    assert both.validation is not None
    assert both.data == both.validation.data


@pytest.mark.parametrize("source", [{}, {"source": {"path": "rows.jsonl"}}])
def test_the_data_may_be_those_of_a_preset(tmp_path: Path, source: dict[str, Any]) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    path = tmp_path / "job.yaml"
    preset = {"benchmark": "HumanEval", "limit": 5} | source
    path.write_text(yaml.safe_dump(document({}, validation={"sets": [{"name": "code", "preset": preset}]})))
    (job,) = load_jobs(path)
    assert job.spec.data == job.spec.held_out_rows[0].data
    assert job.spec.data.prompts is not None and job.spec.data.prompts.source is not None
    assert job.spec.data.prompts.source.path == (str(tmp_path / "rows.jsonl") if source else None)
    assert AlignmentJob.model_validate_json(job.model_dump_json(by_alias=True)) == job


def test_rewards_of_groups_and_of_workflows_may_score() -> None:
    group = {"name": "group", "function": {"module": "a:b"}, "scope": "Group"}
    given = {"name": "won", "episode": {"name": "won"}}
    rollout = {"workflow": {"function": {"module": "c:d"}}}
    spec = AlignmentJob.model_validate(document({}, rewards=[group, given], rollout=rollout)).spec
    assert spec.rewards[0].scores_groups and spec.episode_rewards == {"won": "won"}


def test_an_error_of_a_preset_is_reported_once(tmp_path: Path) -> None:
    sets = [{"name": "code", "preset": {"benchmark": "humaneval"}}]
    reported = errors(tmp_path, document({}, validation={"sets": sets}))
    assert reported.keys() == {"spec.validation.sets[0].preset.benchmark"}


def test_models_are_measured_in_the_order_of_their_steps() -> None:
    spec = AlignmentJob.model_validate(document({"step": 10, "checkpoints": CHECKPOINTS})).spec
    assert spec.algorithm.value.steps == [10, 20, 40]
    assert spec.known_steps() == spec.total_steps(rows=7) == 40
    assert AlignmentJob.model_validate(document({})).spec.known_steps() == 0


def test_checkpoints_are_models_of_the_job() -> None:
    job = AlignmentJob.model_validate(document({"checkpoints": CHECKPOINTS}))
    path = ("spec", "algorithm", "evaluate", "checkpoints", 0, "model")
    assert dict(named_models(job))[path] == job.spec.algorithm.value.checkpoints[0].model
    assert list(result_references(job)) == [((*path, "job", "name"), "late")]


def test_the_job_has_no_trainer() -> None:
    score = {"name": "exact", "function": {"module": "a:b"}}
    sampling = {"scores": [score]}
    job = AlignmentJob.model_validate(document({}, validation={"data": PROMPTS, "sampling": sampling}))
    assert not job.spec.algorithm.value.trains
    assert job.spec.algorithm.value.makes is ResultKind.METRICS
    assert [process.name for process in roles(job)] == ["prepare", "reward-exact-0", "rollout-0", "driver"]


@pytest.mark.parametrize(
    ("entry", "spec", "path", "text"),
    [
        ({}, {"validation": None}, "spec.validation", "evaluate measures the validation"),
        ({}, {"maxSteps": 3}, "spec.maxSteps", "evaluate has no steps to count: remove it"),
        (
            {},
            {"data": {"prompts": {"source": {"path": "/other"}}}},
            "spec.data",
            "reads the rows of validation alone",
        ),
        ({}, {"trainer": {"ranks": 2}}, "spec.trainer", "evaluate produces no weights: remove it"),
        (
            {},
            {"validation": {"data": PROMPTS, "everySteps": 5}},
            "spec.validation.everySteps",
            "evaluate trains no steps: remove it",
        ),
        (
            {},
            {"validation": {"sets": [{"name": "sums", "data": PROMPTS, "everySteps": 5}]}},
            "spec.validation.sets[0].everySteps",
            "evaluate trains no steps: remove it",
        ),
        (
            {},
            {"validation": {"data": PROMPTS, "atStart": False}},
            "spec.validation.atStart",
            "evaluate measures every model: remove it",
        ),
        (
            {},
            {"validation": {"data": PROMPTS, "sets": [{"name": "sums", "data": PROMPTS, "atEnd": False}]}},
            "spec.validation.sets[0].atEnd",
            "evaluate measures every model: remove it",
        ),
        (
            {},
            {
                "validation": {
                    "data": PROMPTS,
                    "everySteps": None,
                    "earlyStopping": {"metric": "val/exact", "target": {"atLeast": 1}},
                }
            },
            "spec.validation.earlyStopping",
            "evaluate trains no steps: remove it",
        ),
        (
            {},
            {"data": PROMPTS, "validation": {"sets": [{"name": "sums", "data": OTHER_PROMPTS}]}},
            "spec.data",
            "reads the rows of validation alone",
        ),
        (
            {},
            {"validation": {"sets": [{"name": "a", "data": {"demonstrations": {"source": {"path": "/r"}}}}]}},
            "spec.validation.sets[0].data.demonstrations",
            "evaluate validates on prompts",
        ),
        (
            {},
            {"validation": {"data": {"demonstrations": {"source": {"path": "/rows"}}}}},
            "spec.validation.data.demonstrations",
            "evaluate validates on prompts",
        ),
        (
            {"step": 20, "checkpoints": CHECKPOINTS},
            {},
            "spec.algorithm.evaluate.checkpoints[1].step",
            "must be above step, 20, which is that of policy.model",
        ),
        (
            {"checkpoints": [CHECKPOINTS[0], CHECKPOINTS[0]]},
            {},
            "spec.algorithm.evaluate.checkpoints[1].step",
            "another entry has this step: change one",
        ),
        ({}, {"checkpoint": {"from": {"path": "/run"}}}, "spec.checkpoint.from", "trains nothing"),
    ],
)
def test_settings_of_training_are_refused(
    tmp_path: Path, entry: dict[str, Any], spec: dict[str, Any], path: str, text: str
) -> None:
    reported = errors(tmp_path, document(entry, **spec))
    assert reported.keys() == {path}, reported
    assert text in reported[path]


def test_an_error_of_the_rows_is_reported_once(tmp_path: Path) -> None:
    rows = {"prompts": {"source": {"path": "/p.jsonl"}, "maxTokens": 0}}
    reported = errors(tmp_path, document({}, validation={"data": rows}))
    assert reported.keys() == {"spec.validation.data.prompts.maxTokens"}


def test_rewards_of_some_sources_need_no_mixture() -> None:
    reward = {"name": "math", "function": {"module": "a:b"}, "sources": ["sums"]}
    job = AlignmentJob.model_validate(document({}, rewards=[reward]))
    assert job.spec.rewards[0].sources == ["sums"]
