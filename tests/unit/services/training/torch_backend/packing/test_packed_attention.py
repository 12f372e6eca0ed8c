"""Packed forward passes equal those of transformers, sequence by sequence."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens
from kubealign_services.training.torch_backend.packing.packed_attention import (
    UnsupportedTrainingModel,
    plan_attention,
)

SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 41,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=1),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt2": GPT2Config(**GPT2_SIZES, bos_token_id=1, eos_token_id=2),
    "gemma2": Gemma2Config(
        **SIZES,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0,
    ),
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4, head_dim=8),
}
LENGTHS = (1, 9, 3, 17, 16, 2)
# Long enough for a call of the kernel each.
LONG = (40, 3, 64, 33)
BOTH = pytest.mark.parametrize("lengths", [LENGTHS, LONG], ids=["short", "long"])
CPU = torch.device("cpu")


@BOTH
@pytest.mark.parametrize(
    ("name", "implementation"),
    # transformers' SDPA ignores the caps of Gemma 2.
    [(name, how) for name in CONFIGS for how in ("sdpa", "eager") if (name, how) != ("gemma2", "sdpa")],
)
def test_packed_forward_equals_plain_forward(
    name: str,
    implementation: str,
    lengths: tuple[int, ...],
    tmp_path: Path,
    save_model: Callable[..., Path],
    make_batch: Callable[..., Batch],
) -> None:
    folder = save_model(CONFIGS[name], tmp_path)
    batch = make_batch(*lengths)
    batch.scalars["temperature"] = 0.7
    model = load_model(folder, Head.LANGUAGE_MODEL)
    with torch.no_grad():
        actual = model(PackedTokens.from_batch(batch, CPU), frozenset({"logprobs", "entropy", "collision"}))
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=implementation).eval()
    first = 0
    for length in lengths:
        tokens = batch.tokens[first : first + length].long()
        with torch.no_grad():
            expected = (plain(tokens[None]).logits[0] / 0.7).log_softmax(-1)[:-1]
        logprobs = expected.gather(-1, tokens[1:, None])[:, 0]
        entropy = -(expected.exp() * expected).sum(-1)
        assert actual["logprobs"][first] == 0 and actual["entropy"][first] == 0
        torch.testing.assert_close(
            actual["logprobs"][first + 1 : first + length], logprobs, atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            actual["entropy"][first + 1 : first + length], entropy, atol=1e-5, rtol=1e-5
        )
        collision = expected.exp().square().sum(-1)
        torch.testing.assert_close(
            actual["collision"][first + 1 : first + length], collision, atol=1e-5, rtol=1e-5
        )
        first += length


@pytest.mark.parametrize("name", CONFIGS)
def test_sequences_do_not_attend_to_each_other(
    name: str, tmp_path: Path, save_model: Callable[..., Path], make_batch: Callable[..., Batch]
) -> None:
    model = load_model(save_model(CONFIGS[name], tmp_path), Head.LANGUAGE_MODEL)
    batch = make_batch(8, 8, 7)
    other = make_batch(8, 8, 7)
    other.tokens[8:16] = (other.tokens[8:16] + 1) % 41
    with torch.no_grad():
        before = model(PackedTokens.from_batch(batch, CPU), frozenset({"logprobs"}))["logprobs"]
        after = model(PackedTokens.from_batch(other, CPU), frozenset({"logprobs"}))["logprobs"]
    changed = before != after
    assert changed[8:16].any()
    assert not changed[:8].any() and not changed[16:].any()


@BOTH
def test_packed_gradients_equal_plain_gradients(
    lengths: tuple[int, ...], llama: Path, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(*lengths)
    model = load_model(llama, Head.LANGUAGE_MODEL)
    model(PackedTokens.from_batch(batch, CPU), frozenset({"logprobs"}))["logprobs"].sum().backward()
    plain = AutoModelForCausalLM.from_pretrained(llama)
    for first, last in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        tokens = batch.tokens[first:last].long()
        plain(tokens[None]).logits[0].log_softmax(-1)[:-1].gather(-1, tokens[1:, None]).sum().backward()
    for (name, actual), expected in zip(model.backbone.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, atol=2e-4, rtol=1e-4, msg=name)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_the_plan_contains_every_token_once(lengths: list[int]) -> None:
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    plan = plan_attention(offsets, CPU)
    places = torch.cat([block.gather.flatten() for block in plan.blocks])
    actual = places if plan.scatter is None else places[plan.scatter]
    assert torch.equal(actual, torch.arange(sum(lengths)))
    for block in plan.blocks:
        assert torch.equal(block.gather_states(torch.arange(sum(lengths))), block.gather)
    # Sequences of equal length need no gathering.
    assert plan.scatter is not None or len(set(lengths)) == 1
    assert len(places) <= sum(lengths) * 4 / 3 + 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (GptOssConfig(**SIZES, num_key_value_heads=2, head_dim=8, num_local_experts=2), "s_aux"),
        (
            BloomConfig(vocab_size=41, hidden_size=32, n_layer=2, n_head=4),
            "does not accept an external attention function",
        ),
        (
            FalconConfig(vocab_size=41, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            "does not accept an external attention function",
        ),
        (CohereConfig(**SIZES, num_key_value_heads=2), "other outputs on a pack"),
    ],
)
def test_unsupported_models_are_refused_at_load_time(
    config: object, says: str, tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    with pytest.raises(UnsupportedTrainingModel, match=says):
        load_model(save_model(config, tmp_path), Head.LANGUAGE_MODEL)
