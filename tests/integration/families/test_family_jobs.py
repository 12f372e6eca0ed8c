"""Jobs on families whose refit or forward pass is unlike Llama's: SFT, then GRPO on two ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kubealign.replay.record import FOLDER, batch_path
from support.model_families import FAMILIES, Oracle
from support.running import RunningJobs, left_running
from support.tiny_jobs import online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe"])
def test_sft_and_grpo(family: str, tmp_path: Path) -> None:
    """Engine and trainer agree on every token of every step, and transformers loads the result. A mixture of
    experts trains with the engine's routing.
    """
    is_mixture = family == "qwen3_moe"
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")
    architecture: dict[str, Any] = {
        name: value for name, value in FAMILIES[family].sizes().items() if name not in names
    } | {"model_type": family}
    model = {"config": {"architecture": architecture, "tokenizer": {"train": {"characters": {}}}}}
    first = sft_job(tmp_path, "sft", policy={"model": model})
    then = online_job(
        tmp_path,
        "grpo",
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4}},
        maxSteps=3,
        policy={"model": {"job": {"name": "sft"}}},
        data={"prompts": {"source": {"path": str(tmp_path / "rows.jsonl")}}},
        trainer={"ranks": 2, "optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        # Beyond the window.
        rollout={
            "engine": {"torch": {"maxSequences": 16}},
            "sampling": {"maxTokens": 16, "minTokens": 16},
            "routingReplay": is_mixture,
        },
        checkpoint={"everySteps": 3, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, first, then), tmp_path / "runs") as run:
        assert run.end(timeout=350) == 0, run.output
        lines = [line for line in run.metrics("grpo") if "seconds/step" in line]
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert max(line["rollout/logprob_gap_max"] for line in lines) < 1e-4
        assert max(line["refit/canary_gap"] for line in lines) < 1e-4
        columns = load_file(batch_path(run.folder("grpo") / FOLDER, 1))
        assert ("token.routing" in columns) == is_mixture
        if is_mixture:
            routing = columns["token.routing"]
            # Two layers with two experts for a token; the last token of each of 16 sequences has no record.
            assert routing.shape == (len(columns["tokens"]), 2, 2) and routing.dtype == torch.uint8
            assert routing[columns["cu_seqlens"][1:].long() - 1].unique().tolist() == [255]
            assert (routing == 255).all(-1).all(-1).sum() == 16 and len(routing.unique()) == 5
        logprobs = Oracle(run.folder("grpo") / "result").logprobs(list(range(5)) * 4)
    assert all(-20 < each < 0 for each in logprobs)
    assert not left_running(tmp_path)


def test_grpo_of_an_adapter_of_experts(tmp_path: Path) -> None:
    """The workers load the base by its folder and each version as an adapter; the results are read by
    transformers and peft.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")
    sizes = {name: size for name, size in FAMILIES["mixtral"].sizes().items() if name not in names}
    model = {
        "config": {
            "architecture": sizes | {"model_type": "mixtral"},
            "tokenizer": {"train": {"characters": {}}},
        }
    }
    targets = {"names": ["q_proj", "experts.gate_up_proj", "experts.down_proj"]}
    job = online_job(
        tmp_path,
        "adapted",
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4, "kl": {"fixed": {"coefficient": 0.05}}}},
        maxSteps=3,
        policy={"model": model},
        trainer={
            "ranks": 2,
            "lora": {"rank": 4, "targets": targets},
            "optimizer": {"adamW": {"learningRate": 1.0e-2}},
        },
        rollout={
            "engine": {"torch": {"maxSequences": 16}},
            "sampling": {"maxTokens": 16, "minTokens": 16},
            "routingReplay": True,
        },
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(timeout=350) == 0, run.output
        lines = [line for line in run.metrics("adapted") if "seconds/step" in line]
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert max(line["rollout/logprob_gap_max"] for line in lines) < 1e-4
        assert max(line["refit/canary_gap"] for line in lines) < 1e-4
        # Only the adapter is sent: that of the two stacked weights, and of the queries, of each layer.
        experts = 4 * 4 * ((64 + 192) + (96 + 64))
        assert lines[-1]["refit/bytes"] == 2 * 4 * (experts + 4 * (64 + 64))
        result = run.folder("adapted") / "result"
        logprobs = Oracle(result).logprobs(list(range(5)) * 4)
        adapter = load_file(result / "adapter" / "adapter_model.safetensors")
    assert all(-20 < each < 0 for each in logprobs)
    assert len(adapter) == 2 * 2 * 3
    assert not left_running(tmp_path)


def test_xpo_replays_the_routing_of_the_policy_alone(tmp_path: Path) -> None:
    """The samples of the reference have no record, and the workers load its weights from a folder."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")
    sizes = {name: size for name, size in FAMILIES["mixtral"].sizes().items() if name not in names}
    job = online_job(
        tmp_path,
        "explored",
        {"xpo": {"promptsPerStep": 4}},
        maxSteps=2,
        policy={
            "model": {
                "config": {
                    "architecture": sizes | {"model_type": "mixtral"},
                    "tokenizer": {"train": {"characters": {}}},
                }
            }
        },
        rollout={
            "engine": {"torch": {"maxSequences": 16}},
            "sampling": {"maxTokens": 12, "minTokens": 12},
            "routingReplay": True,
        },
        checkpoint={"everySteps": 2, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(timeout=350) == 0, run.output
        columns = load_file(batch_path(run.folder("explored") / FOLDER, 1))
    is_marked = (columns["token.routing"] == 255).flatten(1).all(1)
    ends = columns["cu_seqlens"][1:].long()
    lengths = ends.diff(prepend=torch.zeros(1, dtype=torch.int64))
    marks = torch.tensor([int(each.sum()) for each in is_marked.split(lengths.tolist())])
    # Each prompt has a sample of the policy and one of the reference.
    assert (marks == 1).sum() == (marks == lengths).sum() == 4
    assert not left_running(tmp_path)
