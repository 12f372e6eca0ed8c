"""Default learning rates by algorithm and adapter, and their origins."""

from typing import Any

import pytest

from kubealign.spec.algorithms import algorithm_specs
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from support.bad_specs import whole_job

#: SFT, distillation: TRL's SFTConfig. Reward models: InstructGPT's 9e-6. Preferences: Zephyr's DPO, TRL's KTO
#: script and OnlineDPOConfig, the SPIN paper. ORPO: its paper. Online: DeepSeekMath, TRL's GRPOConfig, verl's
#: actor.
EXPECTED = {
    "sft": 2e-5,
    "distillation": 2e-5,
    "rejection_sampling": 2e-5,
    "reward_model": 1e-5,
    "dpo": 5e-7,
    "ipo": 5e-7,
    "rpo": 5e-7,
    "simpo": 5e-7,
    "kto": 5e-7,
    "spin": 5e-7,
    "self_rewarding": 5e-7,
    "online_dpo": 5e-7,
    "xpo": 5e-7,
    "orpo": 8e-6,
} | dict.fromkeys(
    [
        *("ppo", "reinforce", "reinforce_plus_plus", "rloo", "remax", "grpo", "dr_grpo", "dapo", "gspo"),
        *("deepseek_math", "cispo", "on_policy_distillation", "custom", "custom_offline"),
    ],
    1e-6,
)


def spec(algorithm: str, changes: dict[str, Any] | None = None) -> AlignmentJobSpec:
    return AlignmentJob.model_validate(whole_job(algorithm, changes)).spec


def test_defaults_of_all_algorithms() -> None:
    trained = {name: each.learning_rate for name, each in algorithm_specs().items() if each.makes.is_model}
    assert trained == EXPECTED


@pytest.mark.parametrize(
    ("algorithm", "changes", "value", "origin"),
    [
        ("sft", {}, 2e-5, "default for sft"),
        ("sft", {"spec.trainer.lora": {}}, 2e-4, "default for sft with LoRA"),
        ("rewardModel", {}, 1e-5, "default for rewardModel"),
        ("grpo", {"spec.trainer.lora": {}}, 1e-5, "default for grpo with LoRA"),
        (
            "grpo",
            {"spec.trainer.lora": {}, "spec.trainer.optimizer.adamW.learningRate": 3e-6},
            3e-6,
            "spec.trainer.optimizer.adamW.learningRate",
        ),
    ],
)
def test_policy(algorithm: str, changes: dict[str, Any], value: float, origin: str) -> None:
    job = spec(algorithm, changes)
    assert job.policy_learning_rate.value == pytest.approx(value)
    assert job.policy_learning_rate.origin == origin
    effective = job.effective_trainer
    assert effective.optimizer.adam_w.learning_rate == job.policy_learning_rate.value
    assert effective.lora == job.trainer.lora


def test_critic() -> None:
    default = spec("ppo")
    assert (default.critic_learning_rate.value, default.critic_learning_rate.origin) == (
        1e-5,
        "default for the critic of ppo",
    )
    assert default.effective_critic is not None
    assert default.effective_critic.optimizer.adam_w.learning_rate == 1e-5
    assert default.policy_learning_rate.value == 1e-6
    chosen = spec("ppo", {"spec.critic.optimizer.adamW.learningRate": 3e-6})
    assert chosen.effective_critic is not None
    assert chosen.effective_critic.optimizer.adam_w.learning_rate == 3e-6
    assert chosen.critic_learning_rate.origin == "spec.critic.optimizer.adamW.learningRate"
    adapted = spec("ppo", {"spec.critic.lora": {}})
    assert adapted.critic_learning_rate.value == pytest.approx(1e-4)
    assert adapted.policy_learning_rate.value == 1e-6
