"""Self-check at start-up: verifies that the model computes the same on a pack as on each sequence alone.

Detects cases that no list of model types would: attention that bypasses the interface, state that leaks from
one sequence into the next, logits that are scaled or capped after the head.
"""

import torch

from kubealign_services.batch.packed import pack
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.packing.packed_attention import (
    PACKED_ATTENTION,
    UnsupportedTrainingModel,
)

#: Relative L2 difference that rounding may cause, by dtype.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}


@torch.no_grad()
def check_packing(model: PackedModel) -> None:
    """Raise UnsupportedTrainingModel when packed and unpacked outputs differ.

    The model is on the CPU, in evaluation mode, not sharded.
    """
    backbone = model.backbone
    vocabulary = _vocabulary_size(model)
    sequences = [
        [(7 * i + 3 * j + 1) % vocabulary for i in range(length)] for j, length in enumerate((3, 5, 2))
    ]
    batch = pack(sequences, [str(i) for i in range(len(sequences))])
    packed = PackedTokens.from_batch(batch, next(backbone.parameters()).device)
    if model.lm_head is not None:
        actual = model(packed, frozenset({"logprobs"}))["logprobs"]
    elif model.head is Head.LANGUAGE_MODEL:
        raise UnsupportedTrainingModel(f"{type(backbone).__name__} has no linear head on its vocabulary")
    else:
        actual = backbone.base_model(
            input_ids=packed.tokens,
            position_ids=packed.positions,
            use_cache=False,
            kubealign_plan=packed.plan,
        ).last_hidden_state[0]
    backbone.set_attn_implementation("eager")
    try:
        unpacked = torch.cat([_run_unpacked(model, tokens) for tokens in sequences])
    finally:
        backbone.set_attn_implementation(PACKED_ATTENTION)
    reference = unpacked.double()
    difference = float((actual.double() - reference).norm() / (reference - reference.mean()).norm())
    if not difference <= TOLERANCE[next(backbone.parameters()).dtype]:
        raise UnsupportedTrainingModel(
            f"model type {backbone.config.model_type} gives other outputs on a pack than on each "
            f"sequence alone (a relative difference of {difference:.2g}): it cannot be trained packed"
        )


@torch.no_grad()
def can_share_prompts(model: PackedModel) -> bool:
    """Return True when a pack with a common prompt stored once gives the same outputs.

    Conditions as for `check_packing`.
    """
    prompt = [1, 4, 2]
    sequences = [[*prompt, 3, 5, 0], [*prompt, 6], [7, 8]]
    batch = pack([[token % _vocabulary_size(model) for token in tokens] for tokens in sequences], list("abc"))
    batch.token_columns["loss_mask"] = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1])
    device = next(model.backbone.parameters()).device
    alone, shared = (PackedTokens.from_batch(batch, device, each) for each in (False, True))
    assert shared.pack_indices is not None
    expected, actual = model.hidden(alone).double(), model.hidden(shared)[shared.pack_indices].double()
    difference = float((actual - expected).norm() / expected.norm())
    return difference <= TOLERANCE[next(model.backbone.parameters()).dtype]


def _vocabulary_size(model: PackedModel) -> int:
    size: int = model.backbone.config.get_text_config().vocab_size
    return size


def _run_unpacked(model: PackedModel, tokens: list[int]) -> torch.Tensor:
    """Return the compared outputs of one sequence, by the model's own forward pass."""
    backbone = model.backbone
    inputs = torch.tensor([tokens], device=next(backbone.parameters()).device)
    if model.lm_head is None:
        hidden: torch.Tensor = backbone(input_ids=inputs, use_cache=False).last_hidden_state[0]
        return hidden
    logits = backbone(input_ids=inputs, use_cache=False).logits[0].double()
    logprobs = logits.log_softmax(-1)[:-1].gather(-1, inputs[0, 1:, None])[:, 0]
    return torch.cat([logprobs.new_zeros(1), logprobs])
