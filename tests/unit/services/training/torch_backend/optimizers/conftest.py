"""A Llama with weights that are large enough for 8-bit moments."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import LlamaConfig


@pytest.fixture(scope="session")
def wide_llama(tmp_path_factory: pytest.TempPathFactory, save_model: Callable[..., Path]) -> Path:
    """Queries, outputs, MLP and the untied head have 4,096 values or more; keys and values have 2,048."""
    config = LlamaConfig(
        vocab_size=101, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    return save_model(config, tmp_path_factory.mktemp("wide"))
