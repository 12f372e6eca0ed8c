"""Runs TRL's SFT, reward model and DPO: `python -m tests.bench.recipes.trl_side.offline RECIPE --model=...`.

The settings are those of the recipe's job file.
"""

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from tests.bench.recipes.trl_side import held_out
from tests.bench.recipes.trl_side.arguments import RunOptions, parse_options, read_rows, training_settings
from tests.bench.recipes.trl_side.recorder import StepRecorder
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

_MICROBATCH = 4
_MAX_LENGTH = 512


def train_sft(options: RunOptions) -> None:
    rows = read_rows(options.data / "demonstrations.jsonl")
    held_out_rows = read_rows(options.data / "held_demonstrations.jsonl")
    model, tokenizer = _causal_model(options), _tokenizer(options)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            **training_settings(options, options.algorithm["rowsPerStep"], _MICROBATCH),
            max_steps=options.steps,
            max_length=_MAX_LENGTH,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows]
        ),
        processing_class=tokenizer,
    )

    def measure() -> Mapping[str, float]:
        return {"val/loss": held_out.demonstration_loss(model, tokenizer, held_out_rows)}

    trainer.add_callback(StepRecorder(measure, {"loss": "sft/loss"}, options.steps, options.out))
    trainer.train()


def train_reward_model(options: RunOptions) -> None:
    torch.manual_seed(options.seed)
    tokenizer = _tokenizer(options)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=1, dtype=torch.float32
    )
    model.config.pad_token_id = tokenizer.pad_token_id
    held_out_rows = read_rows(options.data / "held_preferences.jsonl")
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(
            **training_settings(options, options.algorithm["rowsPerStep"], _MICROBATCH),
            max_steps=options.steps,
            max_length=_MAX_LENGTH,
        ),
        train_dataset=Dataset.from_list(read_rows(options.data / "preferences.jsonl")),
        processing_class=tokenizer,
    )

    def measure() -> Mapping[str, float]:
        chosen, rejected = (
            held_out.scores(model, tokenizer, [row[name] for row in held_out_rows])
            for name in ("chosen", "rejected")
        )
        return held_out.pair_metrics(chosen - rejected)

    trainer.add_callback(StepRecorder(measure, {"loss": "rm/loss"}, options.steps, options.out))
    trainer.train()


def train_dpo(options: RunOptions) -> None:
    model, tokenizer = _causal_model(options), _tokenizer(options)
    held_out_rows = read_rows(options.data / "held_preferences.jsonl")
    beta = options.algorithm["beta"]
    reference = held_out.log_ratios(model, tokenizer, held_out_rows)
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            **training_settings(options, options.algorithm["rowsPerStep"], _MICROBATCH),
            max_steps=options.steps,
            max_length=_MAX_LENGTH,
            beta=beta,
        ),
        train_dataset=Dataset.from_list(read_rows(options.data / "preferences.jsonl")),
        processing_class=tokenizer,
    )

    def measure() -> Mapping[str, float]:
        return held_out.pair_metrics(
            beta * (held_out.log_ratios(model, tokenizer, held_out_rows) - reference)
        )

    trainer.add_callback(StepRecorder(measure, {"loss": "preference/loss"}, options.steps, options.out))
    trainer.train()


def _causal_model(options: RunOptions) -> Any:
    return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)


def _tokenizer(options: RunOptions) -> Any:
    return AutoTokenizer.from_pretrained(options.model)


if __name__ == "__main__":
    parsed = parse_options()
    {"sft": train_sft, "reward-model": train_reward_model, "dpo": train_dpo}[parsed.recipe](parsed)
