"""Inputs of a forward pass on one rank: the rank's tokens of the pack, and the attention plan."""

from dataclasses import dataclass, replace

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.training.megatron_backend.parallel.context_attention import (
    ContextPlan,
    context_shares,
    plan_context,
)
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens
from kubealign_services.training.torch_backend.packing.packed_attention import (
    PackedAttentionPlan,
    plan_attention,
)


@dataclass
class PlannedPackedSeqParams(PackedSeqParams):  # type: ignore[misc]  # megatron-core has no types
    """Carries the attention plan to the core attention through megatron-core's packed parameters."""

    plan: PackedAttentionPlan | ContextPlan | None = None


@dataclass(frozen=True)
class StageTokens:
    """Tokens of one rank.

    Attributes:
        token_indices: int64 [t], this rank's tokens of the padded pack, in its order; all of them without
            context parallelism.
        tokens: int64 [1, t].
        positions: int64 [t].
        packed: Inputs of the heads, of the pack without its padding.
        local_rows: int64 [padded length], row of a token on this rank; -1 for tokens of other ranks.
    """

    token_indices: Tensor
    tokens: Tensor
    positions: Tensor
    attention: PlannedPackedSeqParams
    packed: PackedTokens
    local_rows: Tensor

    @staticmethod
    def from_batch(batch: Batch, layout: ParallelLayout, divisor: int, device: torch.device) -> "StageTokens":
        """Build the inputs of this rank. Raises what `PackedTokens.from_batch` raises.

        The pack is padded with one more sequence of zeros, to which no other sequence attends.

        Args:
            divisor: Each context rank's number of tokens is a multiple of it.
        """
        packed = PackedTokens.from_batch(batch, device)
        length = len(batch.tokens)
        chunks = 2 * layout.context if layout.context > 1 else 1
        multiple = chunks * divisor
        padding = -length % multiple
        seams = batch.cu_seqlens
        tokens, positions = packed.tokens[0], packed.positions[0]
        if padding:
            seams = torch.cat([seams, seams[-1:] + padding])
            tokens = torch.cat([tokens, tokens.new_zeros(padding)])
            positions = torch.cat([positions, torch.arange(padding, device=device)])
        plan: PackedAttentionPlan | ContextPlan
        if layout.context > 1:
            places = context_shares(length + padding, layout.context)[layout.context_rank].to(device)
            plan = plan_context(seams, layout.context, layout.context_rank, device)
        else:
            places = torch.arange(length + padding, device=device)
            plan = plan_attention(seams, device) if padding else packed.plan
        local = torch.full((length + padding,), -1, device=device)
        local[places] = torch.arange(len(places), device=device)
        return StageTokens(
            token_indices=places,
            tokens=tokens[places][None],
            positions=positions[places],
            attention=PlannedPackedSeqParams(plan=plan),
            packed=replace(packed, plan=plan_attention(seams, device)) if padding else packed,
            local_rows=local,
        )
