"""Tiny models in Hugging Face folders, and an objective with a closed-form value."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification

from kubealign_services.batch.packed import Batch, pack
from support.mean_negative_logprob import MeanNegativeLogprob
from support.process_groups import no_process_group_stays

__all__ = ["no_process_group_stays"]

VOCABULARY = 41


@pytest.fixture
def objective() -> MeanNegativeLogprob:
    return MeanNegativeLogprob()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with grouped key-value heads, weights large enough to show differences."""
    return save_causal(_llama_config(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tied_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(_llama_config(tie_word_embeddings=True), tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="session")
def reward_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    torch.manual_seed(5)
    config = _llama_config()
    config.num_labels, config.pad_token_id = 1, 0
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    def make(*lengths: int, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        sequences = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
        return pack(sequences, [f"s{i}" for i in range(len(lengths))])

    return make


@pytest.fixture(scope="session")
def save_model() -> Callable[..., Path]:
    return save_causal


def save_causal(config: Any, folder: Path) -> Path:
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _llama_config(**changes: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    return LlamaConfig(**(sizes | changes))
