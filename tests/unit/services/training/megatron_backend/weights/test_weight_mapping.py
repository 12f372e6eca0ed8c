"""The weight mapping, compared with hand-made examples and with transformers' own checkpoints."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kubealign_services.training.megatron_backend.model.architecture import read_architecture
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.megatron_backend.weights.load_hf import check_parameters, load_weights
from kubealign_services.training.megatron_backend.weights.rank_slices import tensor_owners
from kubealign_services.training.torch_backend.packing.packed_attention import UnsupportedTrainingModel
from support.megatron_models import FAMILIES, config_of, conversions_of, loaded, save_model


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_names_and_shapes_match_transformers(family: str, tmp_path: Path) -> None:
    save_model(tmp_path, config_of(family))
    stored = load_file(tmp_path / "model.safetensors")
    tensors = tensor_owners(conversions_of(config_of(family), pipeline=2))
    shapes = {name: next(iter(owners.values())).slices[0].tensor_shape for name, owners in tensors.items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in stored.items()}


def test_queries_keys_and_values_are_interleaved_by_group() -> None:
    # Four heads of two, in two groups: rows of a group are its four of queries, two of keys, two of values.
    config = config_of("llama", hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=2)
    _, second = conversions_of(config, tensor=2)
    parts = second.slices_of("decoder.layers.3.self_attention.linear_qkv.weight")
    assert [
        (part.name.split(".")[-2], part.start[0], part.size[0], part.local_start[0]) for part in parts
    ] == [
        ("q_proj", 4, 4, 0),
        ("k_proj", 2, 2, 4),
        ("v_proj", 2, 2, 6),
    ]
    assert {part.name.split(".")[2] for part in parts} == {"3"}


def test_gate_and_up_are_concatenated_on_each_rank() -> None:
    _, second = conversions_of(config_of("llama"), tensor=2)
    parts = second.slices_of("decoder.layers.0.mlp.linear_fc1.weight")
    assert [(part.name.split(".")[-2], part.start, part.size, part.local_start) for part in parts] == [
        ("gate_proj", (12, 0), (12, 16), (0, 0)),
        ("up_proj", (12, 0), (12, 16), (12, 0)),
    ]


def test_layers_and_experts_are_numbered_over_the_whole_model() -> None:
    ranks = conversions_of(config_of("mixtral"), pipeline=2, expert=2, data=2)
    last = ranks[3].slices_of("decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight")
    assert [part.name for part in last] == ["model.layers.3.block_sparse_moe.experts.3.w2.weight"]


def test_vocabulary_padding_is_zero_and_not_exported(tmp_path: Path) -> None:
    config = config_of("llama")
    model = save_model(tmp_path, config)
    _, second = conversions_of(config, tensor=2)
    values = loaded(tmp_path, second)["output_layer.weight"]
    assert values.shape == (19, 16)
    assert torch.equal(values[:18], model.lm_head.weight[19:])
    assert torch.equal(values[18], torch.zeros(16))
    assert second.owned_tensors["lm_head.weight"].slices[0].size == (18, 16)


def test_tied_weights_are_on_both_stages_and_owned_by_the_first(tmp_path: Path) -> None:
    config = config_of("qwen2", tie_word_embeddings=True)
    model = save_model(tmp_path, config)
    first, last = conversions_of(config, pipeline=2)
    assert torch.equal(loaded(tmp_path, last)["output_layer.weight"], model.model.embed_tokens.weight)
    assert "model.embed_tokens.weight" in first.owned_tensors
    assert "model.embed_tokens.weight" not in last.owned_tensors
    assert (
        "output_layer.weight" not in conversions_of(config, HeadSizes(vocabulary=False, scores=1))[0].shapes
    )


def test_a_sharded_folder_and_a_bare_trunk_are_read(tmp_path: Path) -> None:
    config = config_of("qwen3")
    model = save_model(tmp_path / "sharded", config, max_shard_size="8KB")
    assert (tmp_path / "sharded/model.safetensors.index.json").is_file()
    (conversion,) = conversions_of(config)
    parameters = loaded(tmp_path / "sharded", conversion)
    assert torch.equal(parameters["output_layer.weight"], model.lm_head.weight)
    model.model.save_pretrained(tmp_path / "trunk")
    (trunk,) = conversions_of(config, HeadSizes(vocabulary=False))
    actual = loaded(tmp_path / "trunk", trunk)
    assert all(torch.equal(actual[name], parameters[name]) for name in actual)


def test_weights_that_are_missing_or_of_another_shape_are_named(tmp_path: Path) -> None:
    config = config_of("llama")
    save_model(tmp_path, config)
    stored = load_file(tmp_path / "model.safetensors")
    (conversion,) = conversions_of(config)
    without = {name: tensor for name, tensor in stored.items() if "2.mlp.up_proj" not in name}
    save_file(without, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"lacks weights of its model: model\.layers\.2\.mlp\.up_proj\.weight"
    ):
        loaded(tmp_path, conversion)
    save_file({**stored, "model.norm.weight": torch.ones(15)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight in shape \(15,\); config\.json implies \(16,\)"
    ):
        loaded(tmp_path, conversion)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
        loaded(tmp_path, conversion)


def test_a_parameter_without_a_row_is_named(tmp_path: Path) -> None:
    (conversion,) = conversions_of(config_of("llama"))
    parameters = {name: torch.zeros(shape) for name, shape in conversion.shapes.items()}
    strange = {**parameters, "decoder.layers.0.self_attention.linear_qkv.bias": torch.zeros(32)}
    with pytest.raises(ValueError, match=r"linear_qkv\.bias of a llama model has no row in the weight"):
        load_weights(tmp_path, conversion, strange)
    del parameters["decoder.final_layernorm.weight"]
    with pytest.raises(ValueError, match=r"lacks parameters of the weight mapping: decoder\.final_layernorm"):
        check_parameters(conversion, parameters)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"hidden_act": "gelu"}, r"hidden_act = 'gelu'; the Megatron backend supports silu"),
        ("llama", {"mlp_bias": True}, r"mlp_bias = True"),
        ("qwen3", {"attention_bias": True}, r"attention_bias = True"),
        ("mixtral", {"num_experts_per_tok": 1}, r"num_experts_per_tok = 1"),
        ("mixtral", {"router_jitter_noise": 0.1}, r"router_jitter_noise = 0\.1"),
        ("llama", {"attention_dropout": 0.1}, r"attention_dropout = 0\.1"),
    ],
)
def test_unsupported_traits_are_refused(family: str, changes: dict, words: str) -> None:
    with pytest.raises(UnsupportedTrainingModel, match=words):
        read_architecture(config_of(family, **changes))


def test_an_unknown_family_is_refused_naming_the_supported_ones() -> None:
    from transformers import GPT2Config

    with pytest.raises(
        UnsupportedTrainingModel, match=r"'gpt2'; it supports llama, mistral, qwen2, qwen3, mixtral"
    ):
        read_architecture(GPT2Config())


def test_windows_and_sparse_layers_are_read_for_each_layer() -> None:
    qwen = read_architecture(
        config_of("qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=3)
    )
    assert qwen.windows == (None, None, None, 6)
    assert read_architecture(config_of("mistral")).windows == (5, 5, 5, 5)
    mixture = read_architecture(config_of("qwen2_moe", mlp_only_layers=[3])).mixture
    assert mixture is not None
    assert mixture.sparse == (False, True, False, False)
