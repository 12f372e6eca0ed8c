"""Fixtures of tests that need a GPU (`make test-gpu`); without a CUDA device every test is skipped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 8192


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason="no CUDA device here: nothing of tests/gpu can run"))


@pytest.fixture
def figure(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that prints a line even when the test passes."""

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}")

    return tell


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Llama of 110 million random weights and a byte-level tokenizer; return the folder."""
    root: Path = tmp_path_factory.mktemp("model")
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<{i}>" for i in range(VOCABULARY - 2 - len(words))]
    byte_level = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="<end>", pad_token="<pad>")
    ids: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(root)
    tokenizer.save_pretrained(root)
    return root
