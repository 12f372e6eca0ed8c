"""Shared prompts: computing them once gives the same results as computing them for each sequence."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model import loading
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.packing.packed_attention import plan_attention
from kubealign_services.training.torch_backend.packing.shared_prompts import share_prompts

CPU = torch.device("cpu")
SIZES = {"vocab_size": 41, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64, "initializer_range": 0.2}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen2": Qwen2Config(**SIZES, num_key_value_heads=1),
    "gpt2": GPT2Config(
        vocab_size=41, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    ),
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4, head_dim=8),
}


def batch_of(*parts: tuple[list[int], list[int]]) -> Batch:
    """Build a batch of (prompt, response) pairs."""
    rows = pack([[*prompt, *response] for prompt, response in parts], [str(i) for i in range(len(parts))])
    mask = [[0] * len(prompt) + [1] * len(response) for prompt, response in parts]
    rows.token_columns["loss_mask"] = torch.tensor([each for row in mask for each in row])
    return rows


def samples() -> Batch:
    """Three samples of a prompt, not adjacent; one of another prompt with a common prefix; one without a
    prompt.
    """
    first, second = [5, 9, 2, 7, 1, 3], [5, 9, 2]
    return batch_of(
        (first, [4, 4, 8]), (second, [7, 1]), (first, [11]), ([], [6, 5, 9]), (first, [4, 4, 30, 2, 1, 9, 12])
    )


def test_share_prompts_matches_hand_computed_indices() -> None:
    # Tokens 0 1 | 2, then 3 4 | 5 6 with the same prompt, then 7 | 8 with the first token of it.
    batch = batch_of(([8, 9], [1]), ([8, 9], [2, 3]), ([8], [9]))
    shared = share_prompts(batch)
    assert shared is not None
    assert shared.computed_indices.tolist() == [0, 1, 2, 5, 6, 7, 8]
    assert shared.pack_indices.tolist() == [0, 1, 2, 0, 1, 3, 4, 5, 6]


def test_nothing_is_shared_without_a_mask_or_without_equal_prompts() -> None:
    batch = batch_of(([8, 9], [1]), ([9, 8], [2]), ([8, 9, 1], [2]), ([], [4]), ([], [4]))
    assert share_prompts(batch) is None
    batch = batch_of(([8, 9], [1]), ([8, 9], [2]))
    del batch.token_columns["loss_mask"]
    assert share_prompts(batch) is None


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=4), st.lists(st.integers(0, 2), max_size=5)).filter(any),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_every_token_maps_to_a_token_with_the_same_prefix(
    rows: list[tuple[list[int], list[int]]],
) -> None:
    batch = batch_of(*rows)
    shared = share_prompts(batch)
    computed = torch.arange(len(batch.tokens)) if shared is None else shared.computed_indices
    places = computed if shared is None else shared.pack_indices
    assert torch.equal(batch.tokens[computed][places], batch.tokens)
    assert torch.equal(batch.positions[computed][places], batch.positions)
    prompts = {tuple(prompt) if response else (*prompt, *response) for prompt, response in rows}
    assert len(computed) == sum(len(response) for _, response in rows) + sum(map(len, prompts))
    plan = plan_attention(batch.cu_seqlens, CPU, shared)
    seen = torch.cat([block.gather.flatten() for block in plan.blocks])
    assert torch.equal(seen if plan.scatter is None else seen[plan.scatter], torch.arange(len(computed)))


@pytest.mark.parametrize("name", CONFIGS)
def test_columns_and_gradients_are_the_same(
    name: str, tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    model = load_model(save_model(CONFIGS[name], tmp_path), Head.LANGUAGE_MODEL, torch.float64)
    assert model.shares_prompts
    actual = [
        columns_and_gradients(model, shared, frozenset({"logprobs", "entropy"})) for shared in (False, True)
    ]
    # The norms of all models but GPT-2 compute in fp32, whatever the model's dtype.
    exact = 1e-10 if name == "gpt2" else 1e-4
    torch.testing.assert_close(actual[1], actual[0], atol=exact, rtol=exact)


@pytest.mark.parametrize("head", [Head.VALUE, Head.SCORE])
def test_values_are_the_same_at_every_token(llama: Path, head: Head) -> None:
    model = load_model(llama, head, torch.float64)
    assert model.score is not None
    torch.nn.init.normal_(model.score.weight)
    actual = [columns_and_gradients(model, shared, frozenset({"values"})) for shared in (False, True)]
    torch.testing.assert_close(actual[1], actual[0], atol=1e-4, rtol=1e-4)


def test_top_k_tokens_are_the_same(llama: Path) -> None:
    model = load_model(llama, Head.LANGUAGE_MODEL)
    alone, shared = (
        model.topk_logprobs(PackedTokens.from_batch(samples(), CPU, each), 3, 41) for each in (False, True)
    )
    assert torch.equal(alone[0], shared[0])
    torch.testing.assert_close(alone[1], shared[1])


def columns_and_gradients(
    model: PackedModel, shared: bool, outputs: frozenset[str]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    packed = PackedTokens.from_batch(samples(), CPU, shared)
    assert packed.tokens.shape[1] == (len(samples().tokens) - (12 if shared else 0))
    columns = model(packed, outputs)
    weights = torch.linspace(-1, 1, packed.length, dtype=torch.float64)
    loss = sum(
        ((weights * column).sum() for column in columns.values()), torch.zeros((), dtype=torch.float64)
    )
    model.zero_grad()
    loss.backward()
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return {name: column.detach() for name, column in columns.items()}, gradients


def test_prompts_are_not_shared_with_dropout(tmp_path: Path, save_model: Callable[..., Path]) -> None:
    config = LlamaConfig(**SIZES, num_key_value_heads=2, attention_dropout=0.1)
    model = load_model(save_model(config, tmp_path), Head.LANGUAGE_MODEL)
    assert model.shares_prompts
    assert not model.train().shares_prompts


def test_prompts_are_not_shared_when_the_self_check_fails(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PackedModel.hidden

    def leaking(self: PackedModel, packed: PackedTokens) -> Tensor:
        """Return hidden states that leak between tokens of the pack across sequence boundaries."""
        hidden = real(self, packed)
        return hidden + hidden.cumsum(0)

    monkeypatch.setattr(PackedModel, "hidden", leaking)
    monkeypatch.setattr(loading, "check_packing", lambda model: None)
    assert not load_model(llama, Head.LANGUAGE_MODEL).shares_prompts
