"""Reads from a Hugging Face folder's config which heads its model has, for all training backends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubealign_services.scoring.attributes import attribute_weights

#: Config key of a reward model: the pooling of token scores into a response's score.
POOLING_KEY = "kubealign_pooling"
#: Config key of a process reward model: the text between two steps.
STEP_SEPARATOR_KEY = "kubealign_step_separator"


@dataclass(frozen=True)
class HeadPooling:
    """Use of a reward model's token scores, as its config states it.

    name: one of ScorePooling, or STEPS_POOLING of a process reward model, whose steps end with
    `step_separator`.
    """

    name: str
    step_separator: str | None = None


def read_pooling(config: Any) -> HeadPooling | None:
    """Return the pooling of a reward model; None where the config states none."""
    name = getattr(config, POOLING_KEY, None)
    return None if name is None else HeadPooling(str(name), getattr(config, STEP_SEPARATOR_KEY, None))


def write_pooling(config: Any, pooling: HeadPooling) -> None:
    """State the pooling in a reward model's config."""
    setattr(config, POOLING_KEY, pooling.name)
    if pooling.step_separator is not None:
        setattr(config, STEP_SEPARATOR_KEY, pooling.step_separator)


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


def check_value_head(folder: Path, config: Any, attributes: Mapping[str, float] | None) -> None:
    """Raise ValueError when a critic cannot start from a reward model's head.

    Args:
        attributes: Weight of each score, as for `merge_heads`; None for a model with a single score.
    """
    if attributes is None:
        check_score_names(folder, config, ("value",))
    else:
        attribute_weights(score_names(config), attributes)


def merge_heads(weight: Tensor, names: Sequence[str], attributes: Mapping[str, float] | None) -> Tensor:
    """Return the head whose output is the weighted sum of the scores, [1, hidden], in the dtype of `weight`.

    A single score is returned unchanged, unless `attributes` weights it.

    Args:
        weight: Head of a reward model, [N, hidden].
        names: Names of the N scores.
        attributes: Weight of each score by name; empty or None: weight 1 for all.

    Raises:
        UnknownAttribute: `attributes` names a score that the model does not have.
    """
    factors = torch.tensor(attribute_weights(names, attributes or {}), dtype=torch.float32)
    return (factors[:, None] * weight.float()).sum(0, keepdim=True).to(weight.dtype)


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
