"""What a frozen model finds likeliest at each place."""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch
from kubealign_services.training.torch_backend.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.passes import Place, planned


@torch.no_grad()
def run_likeliest(
    model: PackedModel, batch: Batch, count: int, vocabulary: int, place: Place
) -> tuple[Tensor, Tensor]:
    """(tokens int64 [T, K], their log-probabilities float32 [T, K]) on the CPU: the likeliest in place of
    each response token, the likeliest first, at the batch's temperature; 0 elsewhere.

    count: how many; K is fewer where the vocabulary is smaller. vocabulary: the tokens that there are; what a
    model has beyond them is padding. For a model of one rank."""
    model.check(batch, frozenset({"logprobs"}))
    tokens: Tensor | None = None
    logprobs: Tensor | None = None
    starts = batch.cu_seqlens[:-1].long()
    for microbatch in planned(model, batch, 1, place):
        part = batch.select(microbatch.sequences)
        packed = PackedTokens.of(part, place.device, model.shares_prompts)
        found, found_logprobs = model.likeliest(packed, count, vocabulary)
        if tokens is None or logprobs is None:
            tokens = torch.zeros((len(batch.tokens), found.shape[1]), dtype=torch.int64)
            logprobs = torch.zeros(tokens.shape)
        origin = starts[torch.tensor(microbatch.sequences)][part.sequence_of_token] + part.positions
        places = origin[packed.chosen.cpu()]
        tokens[places], logprobs[places] = found.cpu(), found_logprobs.float().cpu()
    assert tokens is not None and logprobs is not None
    return tokens, logprobs
