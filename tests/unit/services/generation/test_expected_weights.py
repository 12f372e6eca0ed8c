"""Weights by the names of the checkpoint, where the model stores them in another form."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.torch_engine.model.weight_loader import WeightLoader
from support.model_families import FAMILIES


class Lasting:
    """Tensors whose memory the model may adopt."""

    lasts = True

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.tensors.items())


def empty_model(config: Any) -> Any:
    """Return a model with zero weights."""
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        weight.data.zero_()
    return model


def check_equal(model: Any, folder: Path) -> None:
    expected: Any = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), weight, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("kind", [dict.items, Lasting], ids=["copied", "adopted where possible"])
def test_experts_of_a_checkpoint_reach_the_stacked_parameter(family: str, kind: Any, tmp_path: Path) -> None:
    folder = FAMILIES[family].save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    model = empty_model(FAMILIES[family].config())
    assert tensors.keys() <= ExpectedWeights(model).weights.keys()
    loader = WeightLoader(model)
    loader.load(kind(tensors))
    check_equal(model, folder)
    # Memory of its own again, as after an offload.
    for weight in model.parameters():
        weight.data = torch.zeros_like(weight)
    loader.load(tensors.items())
    check_equal(model, folder)


def test_names_and_shapes_without_memory() -> None:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(FAMILIES["qwen3_moe"].config())
    expected = ExpectedWeights(model)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    assert expected.weights[name].shape == (32, 64) and name in expected.views
    with pytest.raises(ValueError, match=r"layers.1.mlp.experts.3.up_proj.weight' has the shape \[32, 32\]"):
        list(expected.check([(name, torch.zeros(32, 32))]))
    # A part of a parameter that does not come is missing.
    others = {key: torch.zeros(weight.shape) for key, weight in expected.weights.items() if key != name}
    with pytest.raises(ValueError, match=f"1 of 45 did not come: '{name}'"):
        list(expected.check(others.items()))


def test_a_renamed_parameter_accepts_both_names() -> None:
    """The checkpoints of GPT-NeoX call the head embed_out, the model lm_head."""
    config = GPTNeoXConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    model: Any = AutoModelForCausalLM.from_config(config)
    expected = ExpectedWeights(model)
    assert expected.weights["embed_out.weight"] is expected.weights["lm_head.weight"]
    own = dict(model.named_parameters())
    assert len(list(expected.check(own.items()))) == len(own)
    own["embed_out.weight"] = own["lm_head.weight"]
    with pytest.raises(ValueError, match=r"'embed_out\.weight' came twice"):
        list(expected.check(own.items()))


def test_a_parameter_whose_parts_are_no_views_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubealign_services.generation import expected_weights

    model = empty_model(FAMILIES["mixtral"].config())

    def copied(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in weights.items()}

    monkeypatch.setattr(expected_weights, "to_checkpoint_layout", copied)
    with pytest.raises(ValueError, match=r"stores 'model\.embed_tokens\.weight' in another form"):
        WeightLoader(model)
