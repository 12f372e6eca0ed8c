"""Fields that must be equal in a job and in the job from whose checkpoint it starts."""

from typing import Any

import pytest

from kubealign.spec.changes.continuation import continuation_differences
from kubealign.spec.job import AlignmentJob
from kubealign.spec.mutable_fields import MUTABLE_DOCUMENT_FIELDS
from kubealign_services.data.preparation import preparation_inputs
from support.bad_specs import whole_job
from support.document_changes import CHANGES


def _job(algorithm: str, changes: dict[str, Any]) -> AlignmentJob:
    return AlignmentJob.model_validate(whole_job(algorithm, changes))


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("sft", {"metadata.name": "other", "spec.maxSteps": 99}),
        ("sft", {"spec.trainer.optimizer.adamW.learningRate": 0.5}),
        ("sft", {"spec.trainer.optimizer.schedule": {"cosine": {}}}),
        ("sft", {"spec.trainer.stepTimeoutSeconds": 7.0, "spec.lifecycle.maxRestarts": 0}),
        ("sft", {"spec.checkpoint": {"from": {"job": {"name": "sft"}}, "keep": 9}}),
        ("ppo", {"spec.rollout.replicas": 7, "spec.rewards.0.weight": 2.0}),
        ("ppo", {"spec.critic.optimizer.adamW.learningRate": 0.5, "spec.critic.model": None}),
        ("ppo", {"spec.algorithm.ppo.epochsPerStep": 7}),
        ("sft", {"spec.trainer.optimizer": {"device": "Host", "gradientClipNorm": 0.5}}),
    ],
)
def test_what_may_differ(algorithm: str, changes: dict[str, Any]) -> None:
    assert continuation_differences(_job(algorithm, {}), _job(algorithm, changes)) == []


def test_what_may_change_while_the_job_is_suspended_continues_copies_and_prepared_data() -> None:
    validated = {
        "spec.rollout": {"replicas": 5},
        "spec.validation": {"data": {"prompts": {"source": {"path": "held"}}}, "everySteps": 10},
    }
    assert CHANGES.keys() == set(MUTABLE_DOCUMENT_FIELDS)
    before, after = _job("ppo", validated), _job("ppo", validated | CHANGES)
    assert continuation_differences(before, after) == []
    assert preparation_inputs(before) == preparation_inputs(after)


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("sft", {"spec.seed": 5}, "spec.seed was 1, is 5"),
        ("sft", {"spec.policy.model.path": "other"}, 'spec.policy.model.path was "policy", is "other"'),
        (
            "sft",
            {"spec.data.demonstrations.source.path": "x"},
            'spec.data.demonstrations.source.path was "data',
        ),
        ("sft", {"spec.data.demonstrations.limit": 3}, "spec.data.demonstrations.limit was null, is 3"),
        ("sft", {"spec.trainer.ranks": 2}, "spec.trainer.ranks was 1, is 2"),
        ("sft", {"spec.trainer.lora": {"rank": 8}}, "spec.trainer.lora was null"),
        ("sft", {"spec.trainer.backend": {"megatron": {}}}, "spec.trainer.backend.megatron was null"),
        ("sft", {"spec.trainer.optimizer": {"muon": {}}}, "spec.trainer.optimizer.muon was null, is {}"),
        (
            "sft",
            {"spec.trainer.optimizer": {"adamW": {"states": "Blockwise8Bit"}}},
            'spec.trainer.optimizer.adamW.states was "Float32", is "Blockwise8Bit" (the checkpoint holds the '
            "state of this optimiser)",
        ),
        ("rloo", {"spec.algorithm": {"grpo": {}}}, 'spec.algorithm.name was "rloo", is "grpo"'),
        (
            "ppo",
            {"spec.algorithm.ppo.kl": {"adaptive": {"target": 6.0}}},
            'spec.algorithm.kl was null, is "adaptive"',
        ),
        ("ppo", {"spec.critic.ranks": 2}, "spec.critic.ranks was 1, is 2"),
        ("ppo", {"spec.critic.model": {"path": "other"}}, "spec.critic.model"),
    ],
)
def test_what_must_be_equal(algorithm: str, changes: dict[str, Any], message: str) -> None:
    differences = continuation_differences(_job(algorithm, {}), _job(algorithm, changes))
    assert any(message in difference for difference in differences), differences
