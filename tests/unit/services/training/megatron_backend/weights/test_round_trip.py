"""Round trip: Hugging Face folder -> every rank's parameters -> slices, bit for bit, each element once."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    is_weight,
    local_slices,
    tensor_owners,
)
from kubealign_services.training.weight_slices import WeightSlice
from support.megatron_models import FAMILIES, MIXTURES, config_of, conversions_of, loaded, save_model

LAYOUTS = {
    "one": {},
    "tensor 2": {"tensor": 2},
    "pipeline 2": {"pipeline": 2},
    "tensor 2, pipeline 2, data 2": {"tensor": 2, "pipeline": 2, "data": 2},
    "expert 2, data 2": {"expert": 2, "data": 2},
    "tensor 2, expert 2, context 2, data 2": {"tensor": 2, "expert": 2, "context": 2, "data": 2},
}
CASES = [
    pytest.param(family, ranks, id=f"{family}, {name}")
    for family in FAMILIES
    for name, ranks in LAYOUTS.items()
    if family in MIXTURES or "expert" not in ranks
]


def target_view(target: Tensor, piece: WeightSlice) -> Tensor:
    return target[
        tuple(slice(start, start + size) for start, size in zip(piece.start, piece.tensor.shape, strict=True))
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """One folder of each family, untied and tied."""
    root = tmp_path_factory.mktemp("models")
    created = {}
    for family in FAMILIES:
        for tied in (False, True):
            created[family, tied] = folder = root / f"{family}-{tied}"
            save_model(folder, config_of(family, tie_word_embeddings=tied))
    return created


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("family", "ranks"), CASES)
def test_slices_of_all_ranks_equal_the_folder(
    family: str, ranks: dict[str, int], tied: bool, folders: dict[tuple[str, bool], Path]
) -> None:
    folder = folders[family, tied]
    stored = load_file(folder / "model.safetensors")
    actual = {name: torch.full_like(tensor, 7.0) for name, tensor in stored.items()}
    covered = {name: torch.zeros_like(tensor, dtype=torch.int) for name, tensor in stored.items()}
    for conversion in conversions_of(config_of(family, tie_word_embeddings=tied), **ranks):
        for piece in local_slices(conversion, loaded(folder, conversion)):
            assert piece.shape == tuple(stored[piece.name].shape)
            target_view(actual[piece.name], piece).copy_(piece.tensor)
            target_view(covered[piece.name], piece).add_(1)
    assert all(bool((count == 1).all()) for count in covered.values())
    assert all(torch.equal(actual[name], stored[name]) for name in stored)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_slices_tile_every_tensor_once_in_any_layout(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(FAMILIES)))
    tensor, pipeline, context, copies = (
        data.draw(st.sampled_from(sizes)) for sizes in ((1, 2, 3), (1, 2, 4), (1, 2), (1, 2, 3))
    )
    expert = 1
    if family in MIXTURES:
        expert = data.draw(st.sampled_from([n for n in (1, 2, 4) if (context * copies) % n == 0]))
    groups = tensor * data.draw(st.integers(1, 2))
    sizes = {
        "num_key_value_heads": groups,
        "num_attention_heads": groups * data.draw(st.integers(1, 3)),
        "head_dim": data.draw(st.sampled_from([2, 4])),
        "vocab_size": data.draw(st.integers(5, 40)),
        "intermediate_size": 6 * data.draw(st.integers(1, 3)),
        "tie_word_embeddings": data.draw(st.booleans()),
    }
    sizes["hidden_size"] = sizes["num_attention_heads"] * sizes["head_dim"]
    if family in ("qwen2_moe", "qwen3_moe"):
        sizes["moe_intermediate_size"] = 6
    if family == "qwen2_moe":
        sizes["shared_expert_intermediate_size"] = 12
    heads = HeadSizes(data.draw(st.booleans()), data.draw(st.integers(0, 2)))
    ranks = {"tensor": tensor, "pipeline": pipeline, "context": context, "data": copies, "expert": expert}
    conversions = conversions_of(config_of(family, **sizes), heads, **ranks)

    counts: dict[str, Tensor] = {}
    for conversion in conversions:
        parameters = {name: torch.zeros(shape) for name, shape in conversion.shapes.items()}
        for piece in local_slices(conversion, parameters, keep=is_weight):
            target_view(counts.setdefault(piece.name, torch.zeros(piece.shape)), piece).add_(1)
    assert counts.keys() == tensor_owners(conversions, is_weight).keys()
    assert all(bool((count == 1).all()) for count in counts.values())
    assert ("lm_head.weight" in counts) == (heads.vocabulary and not sizes["tie_word_embeddings"])
    assert ("score.weight" in counts) == (heads.scores > 0)


def test_a_slice_is_a_view_where_possible(folders: dict[tuple[str, bool], Path]) -> None:
    (conversion,) = conversions_of(config_of("llama"))
    parameters = loaded(folders["llama", False], conversion)
    gate = next(
        piece for piece in local_slices(conversion, parameters) if piece.name.endswith("0.mlp.up_proj.weight")
    )
    fused = parameters["decoder.layers.0.mlp.linear_fc1.weight"]
    assert gate.tensor.untyped_storage().data_ptr() == fused.untyped_storage().data_ptr()
