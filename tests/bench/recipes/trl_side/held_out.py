"""Measures of held-out rows, by transformers alone. Imports nothing of kubealign."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import torch
from torch.nn.functional import cross_entropy, logsigmoid

_BATCH = 16
_SEED = 0

Messages = Sequence[dict[str, str]]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch to evaluation without gradients, and leave the random number generator as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            yield
    finally:
        model.train(was_training)


def prompt_tokens(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens of a conversation that the assistant continues."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def response_tokens(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens of a conversation's last message, with the end of the turn."""
    text = f"{messages[-1]['content']}{tokenizer.eos_token}"
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def response_logprobs(model: Any, tokenizer: Any, conversations: Sequence[Messages]) -> list[torch.Tensor]:
    """Return log p of each token of the last message, one tensor [tokens] per conversation."""
    result: list[torch.Tensor] = []
    for start in range(0, len(conversations), _BATCH):
        pairs = [
            (prompt_tokens(tokenizer, each[:-1]), response_tokens(tokenizer, each))
            for each in conversations[start : start + _BATCH]
        ]
        ids, mask = _pad([prompt + response for prompt, response in pairs])
        logits = model(input_ids=ids, attention_mask=mask).logits
        for row, (prompt, response) in enumerate(pairs):
            begin = len(prompt) - 1
            # Over the last dimension: over another one, torch sums the vocabulary with an error of 1e-4.
            predicted = logits[row, begin : begin + len(response)]
            result.append(-cross_entropy(predicted, torch.tensor(response), reduction="none"))
    return result


def demonstration_loss(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> float:
    """Return the mean of -log p over the response tokens of all rows."""
    with evaluating(model):
        return -float(
            torch.cat(response_logprobs(model, tokenizer, [row["messages"] for row in rows])).mean()
        )


def log_ratios(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Return log p(chosen) - log p(rejected) [rows], sums over the response tokens."""
    with evaluating(model):
        sums = [
            [float(each.sum()) for each in response_logprobs(model, tokenizer, [row[name] for row in rows])]
            for name in ("chosen", "rejected")
        ]
    return torch.tensor(sums[0]) - torch.tensor(sums[1])


def scores(model: Any, tokenizer: Any, conversations: Sequence[Messages]) -> torch.Tensor:
    """Return the reward model's score [conversations] at the last token."""
    sequences = [
        prompt_tokens(tokenizer, each[:-1]) + response_tokens(tokenizer, each) for each in conversations
    ]
    return sequence_scores(model, sequences)


def sequence_scores(model: Any, sequences: Sequence[list[int]]) -> torch.Tensor:
    """Return the reward model's score [sequences] at the last token of each sequence."""
    values = []
    with evaluating(model):
        for start in range(0, len(sequences), _BATCH):
            batch = sequences[start : start + _BATCH]
            ids, mask = _pad(batch)
            hidden = model.base_model(input_ids=ids, attention_mask=mask)[0]
            last = hidden[torch.arange(len(batch)), mask.sum(1) - 1]
            values.append(model.score(last)[:, 0])
    return torch.cat(values)


def pair_metrics(margins: torch.Tensor) -> dict[str, float]:
    """Return accuracy, a tie counting a half, and loss of margins [pairs] of the chosen response."""
    wins = (margins > 0).float() + 0.5 * (margins == 0).float()
    return {"val/accuracy": float(wins.mean()), "val/loss": float(-logsigmoid(margins).mean())}


def sample_responses(
    model: Any, tokenizer: Any, prompts: Sequence[Messages], max_tokens: int
) -> list[tuple[list[int], list[int]]]:
    """Sample one response per prompt at temperature 1, and return the tokens of both, without padding.

    The token that ends a response is its last one.
    """
    result = []
    end = tokenizer.eos_token_id
    with evaluating(model):
        for start in range(0, len(prompts), _BATCH):
            batch = [prompt_tokens(tokenizer, each) for each in prompts[start : start + _BATCH]]
            ids, mask = _pad(batch, left=True)
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_tokens,
                pad_token_id=end,
                eos_token_id=end,
            )
            for prompt, row in zip(batch, output[:, ids.shape[1] :].tolist(), strict=True):
                result.append((prompt, row[: row.index(end) + 1] if end in row else row))
    return result


def mean_reward(
    model: Any,
    tokenizer: Any,
    rows: Sequence[dict[str, Any]],
    max_tokens: int,
    reward: Callable[..., list[float]],
) -> float:
    """Return the mean reward of one sampled response per row.

    Args:
        reward: Maps prompts, responses and the rows' column `answer` to rewards.
    """
    prompts = [row["messages"] for row in rows]
    sampled = sample_responses(model, tokenizer, prompts, max_tokens)
    texts = [tokenizer.decode(response, skip_special_tokens=True) for _, response in sampled]
    return fmean(reward(prompts, texts, answer=[row["answer"] for row in rows]))


def _pad(sequences: Sequence[list[int]], *, left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, both [sequences, longest]."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        begin = longest - len(sequence) if left else 0
        ids[row, begin : begin + len(sequence)] = torch.tensor(sequence)
        mask[row, begin : begin + len(sequence)] = 1
    return ids, mask
