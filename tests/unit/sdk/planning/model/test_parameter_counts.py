"""Parameter counts, compared with those of transformers."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from kubealign.planning.errors import PlanError
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.trainer_layout import TrainerLayout, stage_parameters
from kubealign.spec.sections.training import Lora, LoraLayerKind, LoraTargetLayers

pytestmark = pytest.mark.timeout(60)

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": LlamaConfig(**SIZES, head_dim=10),
    "mistral": MistralConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "qwen3-moe": Qwen3MoeConfig(
        **SIZES,
        head_dim=8,
        num_experts=6,
        moe_intermediate_size=16,
        mlp_only_layers=[1],
        decoder_sparse_step=2,
    ),
    "nemotron": NemotronConfig(**SIZES),
}


@pytest.mark.parametrize("name", MODELS)
def test_total_equals_that_of_transformers(name: str) -> None:
    config = MODELS[name]
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config).num_parameters()
    assert parameter_counts.total(parse_model_shape(config.to_dict(), name)) == expected


@pytest.mark.parametrize("kind", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig])
def test_missing_config_keys_have_the_class_defaults(kind: Any) -> None:
    config = kind(num_hidden_layers=1)
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config).num_parameters()
    config_json = {"model_type": config.model_type, "num_hidden_layers": 1}
    if kind in (Qwen2Config,):
        config_json["num_key_value_heads"] = config.num_key_value_heads
    assert parameter_counts.total(parse_model_shape(config_json, "default")) == expected


def test_hand_computed_counts() -> None:
    shape = parse_model_shape({"model_type": "llama", **SIZES}, "test")
    # q and o 24 x 24 each, k and v 24 x 12 each; three matrices of 24 x 40; two norms.
    assert parameter_counts.layer(shape, 0) == 2 * 576 + 2 * 288 + 3 * 960 + 48
    assert parameter_counts.total(shape) == 2 * 101 * 24 + 4 * 4656 + 24 == 23496


def test_stages_divide_the_model() -> None:
    shape = parse_model_shape({"model_type": "llama", **SIZES}, "test")
    stages = stage_parameters(shape, TrainerLayout(pipeline=2))
    assert [stage.dense for stage in stages] == [101 * 24 + 2 * 4656, 101 * 24 + 2 * 4656 + 24]
    # Two tensor ranks: norms are repeated, matrices halved.
    (first, _) = stage_parameters(shape, TrainerLayout(tensor=2, pipeline=2))
    assert first.dense == (101 * 24 + 2 * (4656 - 48)) // 2 + 2 * 48


def test_experts_are_divided_over_expert_parallel_ranks() -> None:
    shape = parse_model_shape(MODELS["mixtral"].to_dict(), "mixtral")
    (stage,) = stage_parameters(shape, TrainerLayout(expert=2, data=2))
    assert stage.experts == 4 * 2 * 3 * 24 * 40
    assert stage.dense == parameter_counts.total(shape) - 2 * stage.experts


def test_adapter_parameters() -> None:
    shape = parse_model_shape({"model_type": "llama", **SIZES}, "test")
    lora = Lora(rank=2, targets=LoraTargetLayers(kind=LoraLayerKind.ATTENTION))
    assert parameter_counts.adapter(shape, lora) == 4 * 2 * (48 + 36 + 36 + 48)
    named = Lora(rank=2, dora=True, targets=LoraTargetLayers(names=["q_proj", "down_proj"]))
    assert parameter_counts.adapter(shape, named) == 4 * (2 * (48 + 64) + 24 + 24)


def test_adapters_of_stacked_experts() -> None:
    shape = parse_model_shape(MODELS["mixtral"].to_dict(), "mixtral")
    inputs, width = 24, 40
    each = shape.experts * 2 * ((inputs + 2 * width) + (width + inputs))
    kind = Lora(rank=2, targets=LoraTargetLayers(kind=LoraLayerKind.EXPERTS))
    assert parameter_counts.adapter(shape, kind) == shape.layers * each
    named = Lora(rank=2, targets=LoraTargetLayers(names=["k_proj", "mlp.experts.down_proj"]))
    down = shape.experts * 2 * (width + inputs)
    assert parameter_counts.adapter(shape, named) == shape.layers * (down + 2 * (24 + shape.key_width))
    # The other kinds leave the experts as they are, and a mixture has no other feed-forward layers.
    mlp = Lora(rank=2, targets=LoraTargetLayers(kind=LoraLayerKind.MLP))
    assert parameter_counts.adapter(shape, mlp) == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; a plan knows llama"),
        ({"model_type": "llama", "hidden_size": 0}, "hidden_size is 0"),
        ({"model_type": "llama", "hidden_size": 10, "num_attention_heads": 3}, "do not divide"),
        ({"model_type": "llama", "vocab_size": "big"}, "vocab_size is 'big'"),
    ],
)
def test_unsupported_configs_are_errors(config: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_model_shape(config, "config.json")


def test_an_indivisible_layout_is_an_error() -> None:
    shape = parse_model_shape({"model_type": "llama", **SIZES}, "test")
    with pytest.raises(PlanError, match="pipelineParallel is 3; it must divide"):
        stage_parameters(shape, TrainerLayout(pipeline=3))
