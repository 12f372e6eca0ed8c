"""Notices about valid jobs whose settings work against each other."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.diagnostics.job_notices import JobNotice, NoticeLevel, job_notices
from kubealign.spec.job import AlignmentJob
from support.bad_specs import whole_job

BF16 = {
    "spec.trainer.backend.torch.precision": "BFloat16",
    "spec.rollout.engine.torch.precision": "BFloat16",
}
CHARACTERS: dict[str, Any] = {"train": {"characters": {}}}


def architecture(**config: Any) -> dict[str, Any]:
    return {"spec.policy.model": {"config": {"architecture": config, "tokenizer": CHARACTERS}}}


def notices(algorithm: str, changes: dict[str, Any], *others: AlignmentJob) -> list[JobNotice]:
    job = AlignmentJob.model_validate(whole_job(algorithm, changes))
    return list(job_notices(job, [*others, job]))


def warnings(algorithm: str, changes: dict[str, Any], *others: AlignmentJob) -> list[JobNotice]:
    return [each for each in notices(algorithm, changes, *others) if each.level is NoticeLevel.WARNING]


def test_egress_has_no_effect_on_one_machine() -> None:
    anywhere = [{"anywhere": {}}]
    changes = {
        "spec.rewards.0.egress": anywhere,
        "spec.rollout.workflow": {"function": {"module": "package.module:play"}},
        "spec.rollout.egress": anywhere,
    }
    egress = [notice for notice in notices("rloo", changes) if notice.path.endswith(".egress")]
    assert [notice.path for notice in egress] == ["spec.rewards[0].egress", "spec.rollout.egress"]
    assert all(notice.level is NoticeLevel.NOTE and "On one machine" in notice.message for notice in egress)
    assert not [notice for notice in notices("rloo", {}) if notice.path.endswith(".egress")]


def test_a_server_that_the_workers_cannot_reach_in_a_cluster_is_noted() -> None:
    def egress(url: str, **rollout: Any) -> list[str]:
        changes = {"spec.rollout": {"engine": {"openai": {"url": url}}, **rollout}}
        return [each.message for each in notices("rloo", changes) if each.path == "spec.rollout.egress"]

    (note,) = egress("http://vllm-{worker}.vllm:8000")
    assert note.startswith("is empty") and "http://vllm-{worker}.vllm:8000" in note
    assert egress("http://127.0.0.1:8000") == egress("http://[::1]:8000") == []
    (allowed,) = egress("http://vllm:8000", egress=[{"namespace": {"name": "vllm"}}])
    assert "is empty" not in allowed


def test_reward_servers_that_cannot_be_reached_in_a_cluster_are_noted() -> None:
    def noted(url: str, **reward: Any) -> list[tuple[str, str]]:
        judge = {"url": url, "model": "m", "task": {"pointwise": {}}}
        score = {"name": "fair", "http": {"url": url}}
        changes = {
            "spec.rewards": [{"name": "good", "judge": judge, **reward}],
            "spec.validation": {
                "data": {"prompts": {"source": {"path": "x"}}},
                "sampling": {"scores": [score]},
            },
        }
        every = notices("rloo", changes)
        return [(each.path, each.message) for each in every if each.message.startswith("is empty")]

    (first_path, first), (second_path, second) = noted("https://judge.example/v1")
    assert (first_path, second_path) == (
        "spec.rewards[0].egress",
        "spec.validation.sampling.scores[0].egress",
    )
    assert "https://judge.example/v1 (spec.rewards[0].judge.url)" in first
    assert "(spec.validation.sampling.scores[0].http.url)" in second
    assert len(noted("https://judge.example/v1", egress=[{"anywhere": {}}])) == 1
    assert not noted("http://localhost:8000/v1")
    sandboxed = {"name": "tests", "verifier": {"code": {"server": {"url": "http://sandbox.tools:8080"}}}}
    every = notices("rloo", {"spec.rewards": [sandboxed]})
    (notice,) = (each for each in every if each.path == "spec.rewards[0].egress")
    assert "http://sandbox.tools:8080 (spec.rewards[0].verifier.code.server.url)" in notice.message


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_moe"},
        {"model_type": "mixtral", "num_local_experts": 4},
        {"model_type": "deepseek_v3", "n_routed_experts": 256},
        {"model_type": "olmoe", "num_experts": 2},
    ],
)
def test_a_mixture_of_experts_in_bf16_is_a_warning(config: dict[str, Any]) -> None:
    (warning,) = warnings("grpo", BF16 | architecture(**config))
    assert warning.path == "spec.policy.model"
    assert "routing is not replayed" in warning.message
    assert "spec.algorithm.grpo.importance" in warning.message
    can_replay = config["model_type"] != "deepseek_v3"
    assert ("Set spec.rollout.routingReplay to true" in warning.message) == can_replay


def test_the_warning_names_the_precision() -> None:
    (warning,) = warnings("grpo", {TRAINER: "Float16"} | architecture(model_type="qwen3_moe"))
    assert "in Float16 engine and trainer can choose" in warning.message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        BF16 | architecture(model_type="llama"),
        BF16 | architecture(model_type="olmoe", num_experts=1),
        architecture(model_type="qwen3_moe"),
        BF16 | architecture(model_type="qwen3_moe") | {"spec.algorithm.grpo.importance": {}},
        BF16 | architecture(model_type="qwen3_moe") | {"spec.rollout.routingReplay": True},
        BF16 | architecture(model_type="qwen3_moe") | {"spec.algorithm.grpo.maxStaleness": 1},
    ],
)
def test_no_warning_where_routing_agrees_or_the_loss_is_corrected(changes: dict[str, Any]) -> None:
    assert warnings("grpo", changes) == []


def test_one_side_in_bf16_is_enough() -> None:
    changes = {"spec.rollout.engine": {"vllm": {"precision": "BFloat16"}}} | architecture(
        model_type="qwen3_moe"
    )
    (warning,) = (each for each in warnings("ppo", changes) if each.path == "spec.policy.model")
    assert "routingReplay" not in warning.message, "vllm records no experts"


def test_an_algorithm_that_does_not_sample_has_no_mismatch() -> None:
    precision = {"spec.trainer.backend.torch.precision": "BFloat16"}
    assert warnings("sft", precision | architecture(model_type="qwen3_moe")) == []


def test_an_algorithm_without_importance_weights_has_no_remedy_to_name() -> None:
    algorithm = {"spec.algorithm": {"onlineDpo": {}}, "spec.reference.model": {"path": "models/first"}}
    assert warnings("rloo", BF16 | algorithm | architecture(model_type="qwen3_moe")) == []


def test_the_config_is_found_by_path_and_by_job(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_moe"}))
    model = {"spec.policy.model": {"path": str(tmp_path)}}
    assert len(warnings("grpo", BF16 | model)) == 1
    first = AlignmentJob.model_validate(whole_job("sft", model))
    next_job = BF16 | {"spec.policy.model": {"job": {"name": "sft"}}}
    assert len(warnings("grpo", next_job, first)) == 1
    assert warnings("grpo", next_job) == []
    (tmp_path / "config.json").write_text("not json")
    assert warnings("grpo", BF16 | model) == []


@pytest.mark.parametrize(
    ("algorithm", "fields", "acts"),
    [
        ("grpo", {}, False),
        ("grpo", {"minibatchSequences": 512}, False),
        ("grpo", {"promptsPerStep": 4, "minibatchSequences": 32}, False),
        ("grpo", {"minibatchSequences": 256}, True),
        ("grpo", {"epochsPerStep": 2}, True),
        ("grpo", {"maxStaleness": 1}, True),
        ("grpo", {"trustRegion": {"sapo": {}}}, False),
        ("ppo", {}, False),
        ("ppo", {"minibatchSequences": 32}, True),
        ("dapo", {}, False),
        ("cispo", {}, False),
        ("cispo", {"epochsPerStep": 2}, True),
        ("reinforce", {}, True),  # has no ratio
        ("remax", {}, True),
    ],
)
def test_a_note_where_clipping_can_never_act(algorithm: str, fields: dict[str, Any], acts: bool) -> None:
    job = "ppo" if algorithm == "ppo" else "grpo"
    found = notices(job, {"spec.algorithm": {algorithm: fields}})
    if acts:
        assert found == []
        return
    (note,) = found
    assert (note.level, note.path) == (NoticeLevel.NOTE, f"spec.algorithm.{algorithm}.minibatchSequences")
    assert "clipping never acts" in note.message and "epochsPerStep above 1" in note.message


def test_the_note_names_the_sequences_of_a_step() -> None:
    (note,) = notices("grpo", {"spec.algorithm": {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 6}}})
    assert "a divisor of 24 below it" in note.message


def test_one_sequence_per_step_can_only_take_more_epochs() -> None:
    (note,) = notices("ppo", {"spec.algorithm": {"ppo": {"promptsPerStep": 1}}})
    assert "divisor" not in note.message and "set epochsPerStep above 1" in note.message


SAMPLED_VALIDATION = {
    "spec.validation": {"data": {"prompts": {"source": {"path": "p.jsonl"}}}, "sampling": {}}
}
TRAINER, ENGINE = "spec.trainer.backend.torch.precision", "spec.rollout.engine.torch.precision"


@pytest.mark.parametrize(
    ("changes", "path", "names"),
    [
        ({TRAINER: "BFloat16", ENGINE: "Float32"}, ENGINE, [f"is Float32, but {TRAINER} is BFloat16"]),
        ({ENGINE: "BFloat16"}, ENGINE, [f"is BFloat16, but {TRAINER} is Float32"]),
        ({TRAINER: "Float16", ENGINE: "BFloat16"}, ENGINE, [f"is BFloat16, but {TRAINER} is Float16"]),
        (
            {TRAINER: "BFloat16", ENGINE: "Float16"},
            ENGINE,
            [f"is Float16, but {TRAINER} is BFloat16", "above 65504 overflow in the engine alone"],
        ),
        (
            {
                "spec.rollout.engine": {"tensorrtLLM": {"precision": "BFloat16"}},
                "spec.trainer.backend": {"megatron": {}},
            },
            "spec.rollout.engine.tensorrtLLM.precision",
            ["is BFloat16", "spec.trainer.backend.megatron.precision is Float32"],
        ),
    ],
)
def test_another_precision_of_the_engine_is_a_warning(
    changes: dict[str, Any], path: str, names: list[str]
) -> None:
    (warning,) = warnings("grpo", changes)
    assert warning.path == path
    assert all(name in warning.message for name in names)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("grpo", {}),
        ("grpo", BF16),
        ("grpo", {TRAINER: "BFloat16"}),
        ("grpo", {TRAINER: "Float16"}),
        ("grpo", {TRAINER: "Float16", ENGINE: "Float16"}),
        ("grpo", {TRAINER: "BFloat16", "spec.rollout.engine": {"vllm": {}}}),
        ("sft", {ENGINE: "BFloat16"} | SAMPLED_VALIDATION),
    ],
)
def test_no_warning_where_precisions_agree_or_nothing_is_compared(
    algorithm: str, changes: dict[str, Any]
) -> None:
    assert warnings(algorithm, changes) == []
