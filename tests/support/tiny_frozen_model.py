"""Folder of a tiny language model with random weights, as reference and teacher load one."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 23


def save_tiny_model(folder: Path) -> None:
    """Write config and weights, from a fixed seed, large enough that log-probabilities differ clearly."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
