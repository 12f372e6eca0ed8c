"""Runs TRL's PPO on a workload: `python -m tests.bench.peers.trl_ppo FOLDER STEPS RESULT`, in the environment
of requirements/trl_ppo.txt, which does not contain kubealign.

Each step's seconds are written to RESULT as JSON lines, with the names of kubealign's metrics.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tests.bench.peers.forced import EndAt
from tests.bench.peers.trl_settings import common_settings
from tests.bench.workload import MODEL, PROMPTS, REWARD_MODEL, Workload
from transformers import (
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer

#: Micro-batches of a step. One micro-batch of 64 padded responses takes more than 24 GiB.
_MICROBATCHES = 4


class Forced:
    """Makes a model's `generate` return responses of the workload's lengths, one step per call, and times
    it."""

    def __init__(self, model: Any, workload: Workload) -> None:
        self.seconds = 0.0
        self._generate, self._workload, self._calls = model.generate, workload, 0
        model.generate = self

    def __call__(self, input_ids: Any, **keywords: Any) -> Any:
        lengths = self._workload.lengths(self._calls)
        self._calls += 1
        begun = time.perf_counter()
        try:
            output = self._generate(
                input_ids=input_ids, logits_processor=[EndAt(lengths, input_ids.shape[1], 1)], **keywords
            )
        finally:
            self.seconds = time.perf_counter() - begun
        actual = [int(row.eq(1).int().argmax()) + 1 for row in output.sequences[:, input_ids.shape[1] :]]
        if actual != lengths:
            raise RuntimeError(f"TRL's responses have {actual} tokens, not {lengths}")
        return output


class StepSeconds(TrainerCallback):
    """Writes a line for each step, which begins at the end of the previous one."""

    def __init__(self, forced: Forced, tokens: int, result: Path) -> None:
        self._forced, self._tokens, self._result = forced, tokens, result
        self._begun = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        now = time.perf_counter()
        line = {
            "step": state.global_step,
            "time": time.time(),
            "batch/tokens": self._tokens,
            "seconds/generate": self._forced.seconds,
            "seconds/step": now - self._begun,
        }
        with self._result.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._begun = time.perf_counter()
        return control


def main(folder: Path, steps: int, result: Path) -> None:
    workload = Workload.read(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / MODEL)

    def judge() -> Any:
        return LlamaForSequenceClassification.from_pretrained(folder / REWARD_MODEL, dtype=torch.float32)

    policy = LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32)
    forced = Forced(policy, workload)
    rows = [json.loads(line) for line in (folder / PROMPTS).read_text().splitlines()]
    trainer = PPOTrainer(
        args=PPOConfig(
            **common_settings(folder / "trl-ppo", workload.seed, workload.learning_rate),
            total_episodes=steps * workload.sequences,
            per_device_train_batch_size=workload.sequences // _MICROBATCHES,
            gradient_accumulation_steps=_MICROBATCHES,
            num_mini_batches=1,
            num_ppo_epochs=1,
            local_rollout_forward_batch_size=workload.sequences,
            num_sample_generations=0,
            response_length=workload.most_tokens,
            stop_token="eos",
            temperature=1.0,
            kl_coef=0.05,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32),
        reward_model=judge(),
        value_model=judge(),
        train_dataset=Dataset.from_list(
            [{"input_ids": tokenizer(row["prompt"])["input_ids"]} for row in rows]
        ),
    )
    cores = len(os.sched_getaffinity(0))
    if torch.get_num_threads() != cores:
        raise RuntimeError(f"TRL would compute with {torch.get_num_threads()} of {cores} cores")
    trainer.add_callback(StepSeconds(forced, workload.tokens, result))
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
