"""Configs of models with random weights."""

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.models.model_builder import build_config
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer


def test_a_type_that_this_transformers_does_not_have() -> None:
    """A job may name a type of a later transformers."""
    tokenizer = train_character_tokenizer(["abc"])
    with pytest.raises(DataError, match=r"model_type: 'llama99' is no model type of transformers; did you"):
        build_config({"model_type": "llama99"}, tokenizer, "spec.policy.model.config.architecture")
