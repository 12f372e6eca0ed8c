"""Checks at start-up that the ranks of a context group compute what one rank does."""

import torch

from kubealign_services.batch.packed import pack
from kubealign_services.training.collectives import all_gather_metrics
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.model.packing_selfcheck import TOLERANCE
from kubealign_services.training.torch_backend.packing.packed_attention import UnsupportedTrainingModel

_FIELD = "backend.torch.contextParallel"


@torch.no_grad()
def check_context_parallel(model: PackedModel, group: ContextGroup, world_size: int) -> None:
    """Raise UnsupportedTrainingModel, on all ranks alike, when the group's ranks compute other hidden states
    than one rank alone, IndivisibleHeads when they cannot share the attention heads.

    Collective over all ranks. The model is on the CPU, in evaluation mode, not sharded.
    """
    config = model.backbone.config
    vocabulary: int = config.get_text_config().vocab_size
    sequences = [
        [(5 * i + 3 * j + 2) % vocabulary for i in range(length)] for j, length in enumerate((4, 7, 2))
    ]
    batch = pack(sequences, [str(index) for index in range(len(sequences))])
    device = next(model.backbone.parameters()).device
    shared = PackedTokens.from_batch(batch, device, context_group=group)
    assert shared.token_slice is not None
    rows = shared.token_slice.rows
    unshared = model.hidden(PackedTokens.from_batch(batch, device)).double()
    expected = unshared[rows]
    actual = model.hidden(shared)[: len(expected)].double()
    difference = float((actual - expected).norm() / unshared.norm())
    gathered = all_gather_metrics({"difference": {"difference": difference}}, world_size)
    differences = [each["difference"]["difference"] for each in gathered]
    tolerance = TOLERANCE[next(model.backbone.parameters()).dtype]
    if not all(each <= tolerance for each in differences):
        raise UnsupportedTrainingModel(
            f"{_FIELD}: {group.size}; model type {config.model_type} gives other outputs when several ranks "
            f"share its tokens (relative differences of {', '.join(f'{each:.2g}' for each in differences)}): "
            "set 1"
        )
