"""Top-k tokens of a frozen model at each position."""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.training.collectives import all_reduce_sum
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.passes.microbatch_passes import (
    RankContext,
    pack_inputs,
    plan_rank_microbatches,
)


@torch.no_grad()
def run_topk_logprobs(
    model: PackedModel, batch: Batch, count: int, vocabulary: int, context: RankContext
) -> tuple[Tensor, Tensor]:
    """Compute the most likely alternatives to each response token, most likely first, at the batch's
    temperature.

    Returns (tokens int64 [T, K], their log-probabilities float32 [T, K]) on the CPU, the same on all ranks; 0
    elsewhere.

    Args:
        count: Number of tokens; K is smaller when the vocabulary is.
        vocabulary: Number of real tokens; the model's further rows are padding.
    """
    model.check_batch(batch, frozenset({"logprobs"}))
    tokens: Tensor | None = None
    logprobs: Tensor | None = None
    starts = batch.cu_seqlens[:-1].long()
    for microbatch in plan_rank_microbatches(model, batch, 1, context):
        part = batch.select(microbatch.sequences)
        packed = pack_inputs(model, part, context)
        top_tokens, top_logprobs = model.topk_logprobs(packed, count, vocabulary)
        if tokens is None or logprobs is None:
            tokens = torch.zeros((len(batch.tokens), top_tokens.shape[1]), dtype=torch.int64)
            logprobs = torch.zeros(tokens.shape)
        if microbatch.is_counted:
            # The ranks of a context group have different targets, so each counts its own.
            origin = starts[torch.tensor(microbatch.sequences)][part.sequence_of_token] + part.positions
            indices = origin[packed.target_indices.cpu()]
            tokens[indices], logprobs[indices] = top_tokens.cpu(), top_logprobs.float().cpu()
    assert tokens is not None and logprobs is not None
    return all_reduce_sum(tokens, context.world_size), all_reduce_sum(logprobs, context.world_size)
