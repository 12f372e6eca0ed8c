"""What a Hugging Face folder's config says of the heads of its model, whatever the backend."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

#: Key of a reward model's config that says how its tokens' scores become a response's.
POOLING = "kubealign_pooling"


def check_folder(folder: Path) -> None:
    """Raises ValueError for one that holds no model."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a Hugging Face model folder: it has no config.json")


def is_reward_model(config: Any) -> bool:
    """Whether the model is a sequence classifier."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or [])


def score_names(config: Any) -> tuple[str, ...]:
    """A classifier's labels, in the order of its head's outputs."""
    return tuple(str(config.id2label[index]) for index in range(config.num_labels))


def check_labels(folder: Path, config: Any, wanted: Sequence[str]) -> None:
    """Raises ValueError where a reward model's scores are others than those wanted. A single label is the
    score that is wanted, whatever it is called."""
    found, names = score_names(config), tuple(wanted)
    if names and (len(found) != len(names) or (len(names) > 1 and found != names)):
        raise ValueError(
            f"{folder} is a reward model with the scores {', '.join(found)}; wanted are {', '.join(names)}"
        )


def no_language_model(folder: Path, config: Any) -> ValueError:
    """What to raise where a reward model's folder was given for a language model's."""
    return ValueError(
        f"{folder} is a reward model ({config.architectures[0]}); a causal language model is needed"
    )


def no_reward_model(folder: Path, config: Any) -> ValueError:
    """What to raise where the head of a reward model is wanted and the folder is another model's."""
    return ValueError(
        f"headInit RewardModel needs a reward model; {folder} is a {(config.architectures or ['?'])[0]}"
    )


def drawn_score(config: Any, count: int, seed: int) -> Tensor:
    """fp32 [count, hidden]: a fresh head of scores, drawn from seed with the config's `initializer_range`."""
    text = config.get_text_config()
    std = getattr(text, "initializer_range", 0.02)
    return torch.randn(count, text.hidden_size, generator=torch.Generator().manual_seed(seed)) * std
