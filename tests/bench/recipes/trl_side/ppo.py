"""Runs TRL's PPO with a reward model: `python -m tests.bench.recipes.trl_side.ppo ppo --model=...`, in the
environment of requirements/trl_ppo.txt.

The settings are those of the recipe's job file, where TRL has them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from tests.bench.recipes.trl_side import held_out
from tests.bench.recipes.trl_side.arguments import RunOptions, parse_options, read_rows, training_settings
from tests.bench.recipes.trl_side.recorder import StepRecorder
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer

_MICROBATCH = 4


def train(options: RunOptions) -> None:
    tokenizer = _tokenizer(options)
    policy, reference = _causal_model(options), _causal_model(options)
    rows = read_rows(options.data / "prompts.jsonl")
    held_out_rows = read_rows(options.data / "held_prompts.jsonl")
    reward_model = _reward_model(options)
    algorithm, max_tokens = options.algorithm, options.max_tokens
    sequences = algorithm["promptsPerStep"]
    if algorithm["minibatchSequences"] != sequences or options.spec["critic"] != {
        "optimizer": options.spec["trainer"]["optimizer"]
    }:
        raise ValueError(f"{options.job}: one minibatch, and one optimiser for policy and critic, as in TRL")
    trainer = PPOTrainer(
        args=PPOConfig(
            **training_settings(options, sequences, _MICROBATCH),
            total_episodes=options.steps * sequences,
            num_mini_batches=1,
            num_ppo_epochs=algorithm["epochsPerStep"],
            local_rollout_forward_batch_size=sequences,
            num_sample_generations=0,
            response_length=max_tokens,
            stop_token="eos",
            temperature=1.0,
            kl_coef=algorithm["kl"]["fixed"]["coefficient"],
            kl_estimator="k1",
            lam=algorithm["gae"]["lambda"],
            vf_coef=0.5,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward_model,
        value_model=_reward_model(options),
        train_dataset=Dataset.from_list(
            [{"input_ids": held_out.prompt_tokens(tokenizer, row["messages"])} for row in rows]
        ),
    )

    def measure() -> Mapping[str, float]:
        prompts = [row["messages"] for row in held_out_rows]
        sampled = held_out.sample_responses(policy, tokenizer, prompts, max_tokens)
        values = held_out.sequence_scores(reward_model, [prompt + response for prompt, response in sampled])
        return {"val/reward/preference": float(values.mean())}

    trainer.add_callback(
        StepRecorder(
            measure,
            {"objective/scores": "reward/mean"},
            options.steps,
            options.out,
            starts_with_step=False,
        )
    )
    trainer.train()


def _tokenizer(options: RunOptions) -> Any:
    """Return the tokenizer with what TRL's trainer takes for granted: prompts padded on the left, and padding
    that is no token of a conversation, since it hides each token that equals the padding.
    """
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    tokenizer.pad_token = tokenizer.unk_token
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        raise ValueError(f"{options.model}: the tokenizer has no token for padding besides its end token")
    return tokenizer


def _causal_model(options: RunOptions) -> Any:
    return AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)


def _reward_model(options: RunOptions) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        options.reward_model, num_labels=1, dtype=torch.float32
    )


if __name__ == "__main__":
    train(parse_options())
