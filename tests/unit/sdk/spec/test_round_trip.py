"""Round trips of a job through YAML and JSON."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob

Make = Callable[..., dict[str, Any]]

CHANGES: dict[str, Any] = {
    "metadata.labels": {"kueue.x-k8s.io/queue-name": "align"},
    "metadata.uid": "1234",
    "spec.seed": 7,
    "spec.trainer.optimizer.adamW.learningRate": 1e-7,
    "spec.trainer.optimizer.gradientClipNorm": 0,
    "spec.trainer.backend": {},
    "spec.checkpoint.keep": 3,
}


@pytest.mark.parametrize("algorithm", ["sft", "rewardModel", "ppo", "rloo", "grpo"])
@pytest.mark.parametrize("changes", [{}, CHANGES], ids=["defaults", "changed"])
def test_yaml_round_trip(algorithm: str, changes: dict[str, Any], document: Make) -> None:
    job = AlignmentJob.model_validate(document(algorithm, changes))
    text = job.to_yaml()
    assert AlignmentJob.from_yaml(text) == job
    assert yaml.safe_load(text)["apiVersion"] == "kubealign.dev/v1alpha1"
    assert "null" not in text


def test_a_job_built_in_python_is_written_completely(document: Make) -> None:
    job = AlignmentJob.model_validate(document("ppo"))
    filled = job.spec.model_copy(update={"critic": job.spec.effective_critic})
    text = job.model_copy(update={"spec": filled}).to_yaml()
    assert AlignmentJob.from_yaml(text).spec.critic == job.spec.effective_critic


def test_relative_paths_of_a_text_are_unchanged(document: Make) -> None:
    job = AlignmentJob.from_yaml(yaml.safe_dump(document("sft")))
    assert job.spec.policy.model.path == "policy"


@pytest.mark.parametrize("by_alias", [True, False])
def test_json_round_trip(by_alias: bool, document: Make) -> None:
    job = AlignmentJob.model_validate(document("ppo", CHANGES))
    assert AlignmentJob.model_validate_json(job.model_dump_json(by_alias=by_alias)) == job


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "the text must hold one document, it holds 0"),
        ("a: 1\n---\nb: 1\n", "the text must hold one document, it holds 2"),
        ("metadata: {name: ${NAME}}\n", "line 1: is not YAML"),
        ("metadata: {name: x}\n", "x: spec: is required"),
    ],
)
def test_invalid_texts(text: str, error: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        AlignmentJob.from_yaml(text)
    assert error in str(caught.value)
