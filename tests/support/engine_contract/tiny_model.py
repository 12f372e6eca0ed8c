"""The model of the contract tests: a tiny Llama whose weights depend on their version alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

CONTEXT = 96
VOCABULARY = 258
END_TOKEN = 256


def write_model(folder: Path) -> Path:
    """Write a tiny Llama's configuration, and the tokenizer."""
    write_tokenizer(folder)
    configuration().save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of the 256 bytes, an end token and a padding token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    make: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    end, padding = AddedToken("<end>", special=True), AddedToken("<pad>", special=True)
    make(tokenizer_object=raw, eos_token=end, pad_token=padding).save_pretrained(folder)


def configuration() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        # Heads of 32 dimensions, the least that vLLM has on a CPU.
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        # Wide, so that the likeliest tokens are far apart.
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=END_TOKEN,
        pad_token_id=257,
    )


def model(version: int) -> Any:
    """Return the plain transformers model of a weight version."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(version)
        make: Callable[..., Any] = AutoModelForCausalLM.from_config
        return make(configuration(), attn_implementation="eager").eval()


def weights(version: int) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model(version).named_parameters()}


def adapter(seed: int) -> dict[str, Tensor]:
    """Return an adapter of rank 2 for the query projections of both layers."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(2, 64, generator=random)
        tensors[f"{name}.lora_B.weight"] = torch.randn(64, 2, generator=random)
    return tensors


def plain_logprobs(
    version: int, prompt: Sequence[int], tokens: Sequence[int], cache: Any = None
) -> list[float]:
    """Return transformers' log-probabilities of the tokens after the prompt.

    Args:
        cache: Cache of the text before the prompt.
    """
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = model(version)(ids, past_key_values=cache).logits[0].double()
    chosen = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    logprobs: list[float] = chosen.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return logprobs
