"""Longest sequences that models compute independently of the others in the batch."""

from typing import Any

import pytest
from transformers import BloomConfig, Gemma3TextConfig, LlamaConfig, Phi3Config

from kubealign_services.data.models.context_length import context_length

LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0] * 16,
}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (LlamaConfig(max_position_embeddings=2048), 2048),
        (
            LlamaConfig(
                max_position_embeddings=2048,
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
            ),
            2048,
        ),
        (
            LlamaConfig(
                max_position_embeddings=8192,
                rope_parameters={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 2048,
                },
            ),
            8192,
        ),
        (
            Phi3Config(
                hidden_size=64,
                num_attention_heads=2,
                max_position_embeddings=131072,
                original_max_position_embeddings=4096,
                rope_parameters=LONG_ROPE,
                pad_token_id=0,
            ),
            4096,
        ),
        (Gemma3TextConfig(max_position_embeddings=512), 512),
    ],
    ids=["default", "dynamic", "yarn", "longrope", "a set for each type of layers"],
)
def test_context_length(config: Any, length: int) -> None:
    assert context_length(config) == length


def test_a_config_without_a_bound() -> None:
    assert context_length(BloomConfig()) is None


def test_long_rope_of_one_type_of_layers() -> None:
    config = Gemma3TextConfig(max_position_embeddings=8192)
    config.rope_parameters = config.rope_parameters | {
        "full_attention": LONG_ROPE | {"original_max_position_embeddings": 1024}
    }
    assert context_length(config) == 1024
