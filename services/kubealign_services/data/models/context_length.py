"""Longest sequence that a model computes independently of other sequences in the batch."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig


def context_length(config: PretrainedConfig) -> int | None:
    """Return the maximum sequence length in tokens; None if the config has no bound.

    With LongRoPE (Ding et al. 2024) it is the length of the original pretraining: beyond it transformers
    takes the frequencies for long sequences for all sequences of a batch, so that the outputs of a short
    sequence would depend on the others.
    """
    text = config.get_text_config()
    bounds = [getattr(text, "max_position_embeddings", None)]
    bounds += [
        rope.get("original_max_position_embeddings")
        for rope in _rope_parameters(text)
        if rope.get("rope_type") == "longrope"
    ]
    return min((int(each) for each in bounds if isinstance(each, int) and each > 0), default=None)


def _rope_parameters(text: PretrainedConfig) -> Iterator[Mapping[str, Any]]:
    """Yield the config's set of rotary parameters, or the set of each type of layers."""
    # transformers 4 has the second name.
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    yield rope
    yield from (each for each in rope.values() if isinstance(each, Mapping))
