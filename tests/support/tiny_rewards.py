"""Tiny reward models, created with transformers only."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
)

from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer


def reward_folder(
    folder: Path, alphabet: str, names: Sequence[str] = ("score",), seed: int = 1, pooling: str | None = None
) -> Path:
    """Write a sequence classifier with these labels, and its tokenizer with one token per letter."""
    return classifier_folder(folder, train_character_tokenizer([alphabet]), names, seed, pooling)


def classifier_folder(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    names: Sequence[str] = ("score",),
    seed: int = 1,
    pooling: str | None = None,
    step_separator: str | None = None,
    **sizes: Any,
) -> Path:
    """Write a sequence classifier with these labels, and this tokenizer.

    step_separator: of a process reward model. sizes: fields of the config that differ."""
    config = _config(len(tokenizer), **sizes)
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    if pooling is not None:
        config.kubealign_pooling = pooling
    if step_separator is not None:
        config.kubealign_step_separator = step_separator
    torch.manual_seed(seed)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_folder(folder: Path, alphabet: str, seed: int = 1) -> Path:
    """Write a causal language model with the same tokenizer."""
    tokenizer = train_character_tokenizer([alphabet])
    torch.manual_seed(seed)
    LlamaForCausalLM(_config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def scores_of(folder: Path, sequences: Sequence[tuple[list[int], int]]) -> Tensor:
    """Return the scores [S, N] of the folder's model, computed by transformers one sequence at a time.

    sequences: (tokens, number of prompt tokens)."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    summed = getattr(model.config, "kubealign_pooling", None) == "ResponseSum"
    scores = []
    with torch.no_grad():
        for tokens, prompt in sequences:
            heads = model.score(model.model(torch.tensor([tokens])).last_hidden_state[0])
            scores.append(heads[prompt:].sum(0) if summed else heads[-1])
    return torch.stack(scores)


def _config(vocabulary: int, **sizes: Any) -> LlamaConfig:
    fields: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.5,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    return LlamaConfig(**fields | sizes)
