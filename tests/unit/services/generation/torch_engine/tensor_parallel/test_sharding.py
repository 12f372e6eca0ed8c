"""Shards of a model: they tile every tensor and together compute the full model."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3Config

from kubealign_services.generation.torch_engine.tensor_parallel.sharding import (
    IndivisibleModel,
    ModelShard,
    check_divisible,
    shard_adapter,
    shard_config,
    shard_tensor,
)
from kubealign_services.training.adapters.lora import LowRankAdapter

SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
}
CONFIGS = [
    LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, pad_token_id=66),
    LlamaConfig(**SIZES, tie_word_embeddings=True),
    Qwen3Config(**SIZES, head_dim=8),
]


def parameters(config: Any) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return dict(model.state_dict())


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.model_type))
def test_every_slice_fits_the_model_of_its_shard(config: Any, size: int) -> None:
    for rank in range(size):
        shard = ModelShard(rank, size)
        check_divisible(config, shard)
        local = parameters(shard_config(config, shard))
        for name, full in parameters(config).items():
            shape, room = shard_tensor(name, full, shard).shape, local[name].shape
            assert len(shape) == len(room)
            assert all(part <= most for part, most in zip(shape, room, strict=True)), name
            # Only the vocabulary's last shard has unused rows; only the first adds the bias of a sum.
            if shape != room:
                assert name.endswith(
                    ("embed_tokens.weight", "lm_head.weight", "o_proj.bias", "down_proj.bias")
                )


def test_vocabulary_shards() -> None:
    """67 rows for three processes: 23, 23 and 21."""
    embedding = torch.arange(67.0)[:, None]
    parts = [shard_tensor("model.embed_tokens.weight", embedding, ModelShard(rank, 3)) for rank in range(3)]
    assert [len(part) for part in parts] == [23, 23, 21]
    assert torch.equal(torch.cat(parts), embedding)
    # Ten rows for seven processes: two each, none for the last two.
    assert [len(ModelShard(rank, 7).block(10)) for rank in range(7)] == [2, 2, 2, 2, 2, 0, 0]


def test_mlp_shards_sum_to_the_whole() -> None:
    """down(up(x)) is the sum of the shards' outputs, with the bias added once."""
    torch.manual_seed(1)
    up, down, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((36, 24), (24, 36), (24,)))
    x = torch.randn(5, 24, dtype=torch.float64)
    total = torch.zeros(5, 24, dtype=torch.float64)
    for rank in range(3):
        shard = ModelShard(rank, 3)
        hidden = torch.relu(x @ shard_tensor("layers.0.mlp.up_proj.weight", up, shard).T)
        total += hidden @ shard_tensor("layers.0.mlp.down_proj.weight", down, shard).T
        bias_shard = shard_tensor("layers.0.mlp.down_proj.bias", bias, shard)
        if len(bias_shard):
            total += bias_shard
    assert torch.allclose(total, torch.relu(x @ up.T) @ down.T + bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("layer", "shape"), [("mlp.up_proj", (9, 4)), ("mlp.down_proj", (4, 9)), ("self_attn.other", (4, 4))]
)
def test_merged_adapter_shards_equal_shards_of_the_merged(layer: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    base = torch.randn(*shape, dtype=torch.float64)
    adapter = LowRankAdapter(
        torch.randn(2, shape[1], dtype=torch.float64), torch.randn(shape[0], 2, dtype=torch.float64), None
    )
    merged = adapter.merge_into(base, 0.5, transposed=False)
    for rank in range(3):
        shard = ModelShard(rank, 3)
        part = shard_adapter(layer, adapter, shard)
        actual = part.merge_into(shard_tensor(f"{layer}.weight", base, shard), 0.5, transposed=False)
        assert torch.allclose(actual, shard_tensor(f"{layer}.weight", merged, shard), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("config", "size", "message"),
    [
        (
            CONFIGS[0],
            4,
            r"rollout.engine.torch.tensorParallel is 4; it must divide the model's 6 key heads: "
            r"it may be 1, 2, 3, 6",
        ),
        (CONFIGS[0], 5, r"is 5; it must divide the model's 12 attention heads"),
        (
            LlamaConfig(**{**SIZES, "intermediate_size": 35}),
            2,
            r"is 2; .* 35 columns of the MLP: it may be 1",
        ),
        (
            MixtralConfig(**SIZES),
            2,
            r"tensorParallel is 2; a model of type 'mixtral' runs in one process \(1\). Shared are llama, ",
        ),
    ],
)
def test_indivisible_models_are_refused(config: Any, size: int, message: str) -> None:
    with pytest.raises(IndivisibleModel, match=message):
        check_divisible(config, ModelShard(0, size))
