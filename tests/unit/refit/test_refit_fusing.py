"""Fused tensors are the concatenation of what the checkpoint names, in the engine's order of rows."""

import pytest
import torch
from torch import Tensor

from kubealign_services.refit.fusing import FUSIONS, CannotFuse, fused

pytestmark = pytest.mark.timeout(30)


def layer(biases: bool) -> dict[str, Tensor]:
    """A layer with 4 query rows, 2 of keys and of values, and an MLP of 6."""
    rows = {"self_attn.q_proj": 4, "self_attn.k_proj": 2, "self_attn.v_proj": 2, "self_attn.o_proj": 3}
    rows |= {"mlp.gate_proj": 6, "mlp.up_proj": 6, "mlp.down_proj": 3}
    made: dict[str, Tensor] = {}
    for index, (name, count) in enumerate(rows.items()):
        made[f"model.layers.0.{name}.weight"] = torch.arange(count * 3.0).reshape(count, 3) + 100 * index
        if biases and "self_attn" in name and "o_proj" not in name:
            made[f"model.layers.0.{name}.bias"] = torch.arange(float(count)) + 1000 * index
    return made


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("reverse", [False, True])
def test_parts_are_joined_in_the_engines_order_however_they_come(model_type: str, reverse: bool) -> None:
    parts = layer(biases=model_type == "qwen2")
    items = list(parts.items())
    found = dict(fused(reversed(items) if reverse else items, model_type))
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    kinds = ["weight", "bias"] if model_type == "qwen2" else ["weight"]
    wanted = {
        f"{attention}.o_proj.weight": parts[f"{attention}.o_proj.weight"],
        f"{mlp}.down_proj.weight": parts[f"{mlp}.down_proj.weight"],
        f"{mlp}.gate_up_proj.weight": torch.cat(
            [parts[f"{mlp}.gate_proj.weight"], parts[f"{mlp}.up_proj.weight"]]
        ),
    }
    for kind in kinds:
        wanted[f"{attention}.qkv_proj.{kind}"] = torch.cat(
            [parts[f"{attention}.{letter}_proj.{kind}"] for letter in "qkv"]
        )
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_experts_keep_their_names(model_type: str) -> None:
    name = "model.layers.1.mlp.experts.3.gate_proj.weight"
    assert [found for found, _ in fused([(name, torch.ones(2, 2))], model_type)] == [name]


def test_what_cannot_be_fused_is_named() -> None:
    parts = layer(biases=False)
    query, key = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
    left_out = [item for item in parts.items() if item[0] != key]
    with pytest.raises(CannotFuse, match=r"self_attn\.qkv_proj\.weight: k_proj did not come"):
        dict(fused(left_out, "llama"))
    with pytest.raises(CannotFuse, match=r"q_proj \[4, 5\], k_proj \[2, 3\]"):
        dict(fused((parts | {query: torch.ones(4, 5)}).items(), "llama"))
    with pytest.raises(CannotFuse, match="model_type is 'gpt2'; fused are llama"):
        dict(fused([], "gpt2"))
    assert "llama" in FUSIONS
