"""Runs TRL's RLOO, GRPO and on-policy distillation on sums:
`python -m tests.bench.recipes.trl_side.online RECIPE --model=...`.

The settings are those of the recipe's job file, where TRL has them.
"""

import runpy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from datasets import Dataset
from tests.bench.recipes.trl_side import held_out
from tests.bench.recipes.trl_side.arguments import RunOptions, parse_options, read_rows, training_settings
from tests.bench.recipes.trl_side.recorder import StepRecorder
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

_MICROBATCH = 16


def load_reward(options: RunOptions) -> Callable[..., list[float]]:
    """Return the function of the job's file that scores responses, in training or in the validation."""
    scored = options.spec.get("rewards") or options.spec["validation"]["sampling"]["scores"]
    file = scored[0]["function"]["file"]
    reward: Callable[..., list[float]] = runpy.run_path(str(options.job.parent / file["path"]))[file["name"]]
    return reward


def train(options: RunOptions) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
    rows = read_rows(options.data / "prompts.jsonl")
    held_out_rows = read_rows(options.data / "held.jsonl")
    samples, max_tokens = options.algorithm["samplesPerPrompt"], options.max_tokens
    settings = training_settings(options, options.algorithm["promptsPerStep"] * samples, _MICROBATCH)
    settings |= {"max_steps": options.steps, "max_completion_length": max_tokens, "temperature": 1.0}
    data = [{"prompt": row["messages"], "answer": row["answer"]} for row in rows]
    reward = load_reward(options)

    def score_completions(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        return reward(prompts, [completion[0]["content"] for completion in completions], **columns)

    common = {"model": model, "processing_class": tokenizer}
    trainer: Any
    if options.recipe == "distillation":
        # The trainer samples once for each row: a prompt is in the rows as often as it is sampled.
        repeated = [row for row in data for _ in range(samples)]
        teacher = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=torch.float32)
        trainer = DistillationTrainer(
            # beta 1: the divergence KL(student || teacher).
            args=DistillationConfig(**settings, beta=1.0, shuffle_dataset=False),
            teacher_model=teacher,
            train_dataset=Dataset.from_list(repeated),
            **common,
        )
    else:
        coefficient = options.algorithm["kl"]["fixed"]["coefficient"]
        settings |= {"num_generations": samples, "num_iterations": 1, "top_k": 0, "beta": coefficient}
        kind, config = {"rloo": (RLOOTrainer, RLOOConfig), "grpo": (GRPOTrainer, GRPOConfig)}[options.recipe]
        if options.recipe == "grpo":
            settings["loss_type"] = "grpo"
        trainer = kind(
            reward_funcs=score_completions,
            args=config(**settings),
            train_dataset=Dataset.from_list(data),
            **common,
        )
    metric = "val/right" if options.recipe == "distillation" else "val/reward/right"

    def measure() -> Mapping[str, float]:
        return {metric: held_out.mean_reward(model, tokenizer, held_out_rows, max_tokens, reward)}

    names = {"reward": "reward/mean", "kl": "kl/reference"}
    trainer.add_callback(StepRecorder(measure, names, options.steps, options.out))
    trainer.train()


if __name__ == "__main__":
    train(parse_options())
