"""Reads from a Hugging Face folder's config which heads its model has, for all training backends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Config key of a reward model: the pooling of token scores into a response's score.
POOLING_KEY = "kubealign_pooling"


def check_model_folder(folder: Path) -> None:
    """Raise ValueError for a folder without a model."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a Hugging Face model folder: it has no config.json")


def is_reward_model(config: Any) -> bool:
    """Return True when the model is a sequence classifier."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or [])


def score_names(config: Any) -> tuple[str, ...]:
    """Return a classifier's labels, in the order of its head's outputs."""
    return tuple(str(config.id2label[index]) for index in range(config.num_labels))


def check_score_names(folder: Path, config: Any, expected: Sequence[str]) -> None:
    """Raise ValueError when a reward model's scores differ from the expected ones.

    A single label matches any single expected name.
    """
    labels, names = score_names(config), tuple(expected)
    if names and (len(labels) != len(names) or (len(names) > 1 and labels != names)):
        raise ValueError(
            f"{folder} is a reward model with the scores {', '.join(labels)}; wanted are {', '.join(names)}"
        )


def not_a_language_model(folder: Path, config: Any) -> ValueError:
    """Return the error for a reward model's folder in place of a language model's."""
    return ValueError(
        f"{folder} is a reward model ({config.architectures[0]}); a causal language model is needed"
    )


def not_a_reward_model(folder: Path, config: Any) -> ValueError:
    """Return the error for another model's folder in place of a reward model's."""
    return ValueError(
        f"headInit RewardModel needs a reward model; {folder} is a {(config.architectures or ['?'])[0]}"
    )


def init_score_head(config: Any, count: int, seed: int) -> Tensor:
    """Return a new score head, fp32 [count, hidden], drawn from seed with the config's
    `initializer_range`.
    """
    text = config.get_text_config()
    std = getattr(text, "initializer_range", 0.02)
    return torch.randn(count, text.hidden_size, generator=torch.Generator().manual_seed(seed)) * std
