"""Rank layouts, and models that can be split by them."""

from dataclasses import replace

import pytest
import torch
from megatron.core.parallel_state import RankGenerator

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.megatron_backend.model.architecture import (
    MixtureOfExperts,
    ModelArchitecture,
)
from kubealign_services.training.megatron_backend.parallel.context_attention import context_shares
from kubealign_services.training.megatron_backend.parallel.layout import (
    ParallelLayout,
    UnsuitedLayout,
    check_layout,
    layer_range,
)

SHAPE = ModelArchitecture(
    family="llama", layers=6, hidden=24, heads=8, kv_heads=4, head_size=3, mlp_size=48, vocabulary=41,
    positions=64, tied=False, qkv_bias=False, qk_norm=False, norm_epsilon=1e-5, initializer_range=0.02,
    windows=(None,) * 6,
)  # fmt: skip
MIXTURE = MixtureOfExperts(
    sparse=(True,) * 6, experts=6, top_k=2, expert_size=16, is_normalised=True, shared_expert_size=0
)


def test_ranks_are_numbered_as_megatron_core_numbers_them() -> None:
    """Ranks of one group differ in that group's dimension alone."""
    spec = MegatronBackendSpec(tensor_parallel=2, context_parallel=2, pipeline_parallel=2, expert_parallel=2)
    world = 16
    layouts = [ParallelLayout.from_spec(spec, rank, world) for rank in range(world)]
    dense = RankGenerator(tp=2, ep=1, dp=2, pp=2, cp=2, order="tp-cp-ep-dp-pp")
    experts = RankGenerator(tp=2, ep=2, dp=2, pp=2, cp=1, order="tp-cp-ep-dp-pp")
    for token, field in {
        "tp": "tensor_rank",
        "cp": "context_rank",
        "dp": "data_rank",
        "pp": "pipeline_rank",
    }.items():
        for group in dense.get_ranks(token):
            assert [getattr(layouts[rank], field) for rank in group] == [0, 1]
            if token in ("tp", "pp"):
                others = {replace(layouts[rank], **{field: 0}) for rank in group}
                assert len(others) == 1
    for group in experts.get_ranks("ep"):
        assert [layouts[rank].expert_rank for rank in group] == [0, 1]
    for group in experts.get_ranks("dp"):
        assert [layouts[rank].expert_replica_rank for rank in group] == [0, 1]
        assert len({layouts[rank].expert_rank for rank in group}) == 1
    for group in dense.get_ranks("dp-cp"):
        assert [layouts[rank].replica_rank for rank in group] == [0, 1, 2, 3]


def test_layers_of_each_stage() -> None:
    spec = MegatronBackendSpec(pipeline_parallel=3)
    actual = [layer_range(6, ParallelLayout.from_spec(spec, rank, 3)) for rank in range(3)]
    assert actual == [range(2), range(2, 4), range(4, 6)]
    assert [ParallelLayout.from_spec(spec, rank, 3).is_last_stage for rank in range(3)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("split", "world", "message"),
    [
        ({"tensor_parallel": 2}, 3, r"trainer.ranks: 3; it must be a multiple .* \(2\)"),
        ({"expert_parallel": 3}, 2, r"expertParallel: 3; it must divide .* \(1 context x 2 data\)"),
    ],
)
def test_invalid_splits_of_ranks_are_refused(split: dict[str, int], world: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParallelLayout.from_spec(MegatronBackendSpec(**split), 0, world)


@pytest.mark.parametrize(
    ("split", "shape", "message"),
    [
        ({"tensor_parallel": 3}, SHAPE, "tensorParallel: 3; the model has 8 attention heads"),
        ({"tensor_parallel": 8}, SHAPE, "tensorParallel: 8; the model has 4 key and value heads"),
        ({"tensor_parallel": 2}, replace(SHAPE, mlp_size=47), "tensorParallel: 2; the model has 47 rows"),
        ({"pipeline_parallel": 4}, SHAPE, "pipelineParallel: 4; the model has 6 layers"),
        ({"expert_parallel": 2}, SHAPE, "expertParallel: 2; the model has no experts"),
        ({"expert_parallel": 4}, replace(SHAPE, mixture=MIXTURE), "expertParallel: 4; the model has 6"),
    ],
)
def test_invalid_splits_of_models_are_refused(
    split: dict[str, int], shape: ModelArchitecture, message: str
) -> None:
    layout = ParallelLayout.from_spec(MegatronBackendSpec(**split), 0, 24)
    with pytest.raises(UnsuitedLayout, match=message):
        check_layout(shape, layout)


def test_a_context_rank_has_tokens_of_both_ends() -> None:
    actual = context_shares(8, 2)
    assert [part.tolist() for part in actual] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert torch.cat(context_shares(24, 3)).sort().values.tolist() == list(range(24))
