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
