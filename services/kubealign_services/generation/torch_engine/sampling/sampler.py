"""Samples the next token of every sequence in one pass over the batch."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.cpu.kernel_threads import KERNEL_THREADS, split_rows
from kubealign_services.generation.torch_engine.cpu.sampling_kernel import draw_tokens


@dataclass(frozen=True)
class SamplingInputs:
    """Sampling settings for the next token of n sequences, all [n] on the logits' device.

    temperature float32 (0: greedy), top_k int64 (0: off), top_p float64 (1: off), uniform float64 in [0,
    1). has_truncation: any row has top_k or top_p. has_greedy: any row is greedy. forbidden: (rows,
    tokens) int64 pairs that may not be sampled, or None.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    uniform: Tensor
    has_truncation: bool
    has_greedy: bool
    forbidden: tuple[Tensor, Tensor] | None = None

    def select(self, rows: Tensor) -> "SamplingInputs":
        """Return the settings of some rows [m] int64, ascending."""
        forbidden = self.forbidden
        if forbidden is not None:
            selected = torch.isin(forbidden[0], rows)
            forbidden = (torch.searchsorted(rows, forbidden[0][selected]), forbidden[1][selected])
        return SamplingInputs(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            uniform=self.uniform[rows],
            has_truncation=self.has_truncation,
            has_greedy=self.has_greedy,
            forbidden=forbidden,
        )


@dataclass(frozen=True)
class SampledTokens:
    """Sampled tokens [n] int64; behaviour_logprobs and engine_logprobs [n] float32, defined as in
    GeneratedSample.
    """

    tokens: Tensor
    behaviour_logprobs: Tensor
    engine_logprobs: Tensor


def sample(logits: Tensor, inputs: SamplingInputs) -> SampledTokens:
    """Sample one token for each row of logits [n, vocabulary] float32.

    A row's token is the inverse of its cumulative distribution, in vocabulary order, at its uniform
    number, and so depends on the row alone. The behaviour distribution of a greedy row is a point, so its
    log-probability is 0.
    """
    if logits.device.type != "cpu":
        return sample_by_torch(logits, inputs)
    sampled = sample_by_kernel(logits, inputs)
    if inputs.has_truncation:
        rows = ((inputs.top_k > 0) | (inputs.top_p < 1)).nonzero()[:, 0]
        cut = sample_by_torch(logits[rows], inputs.select(rows))
        sampled.tokens[rows] = cut.tokens
        sampled.behaviour_logprobs[rows] = cut.behaviour_logprobs
        sampled.engine_logprobs[rows] = cut.engine_logprobs
    return sampled


def sample_by_kernel(logits: Tensor, inputs: SamplingInputs) -> SampledTokens:
    """Sample on a CPU by the compiled kernel, ignoring truncation."""
    rows = len(logits)
    starts, forbidden = np.zeros(rows + 1, np.int64), np.zeros(0, np.int64)
    if inputs.forbidden is not None:
        order = torch.argsort(inputs.forbidden[0], stable=True)
        starts = torch.searchsorted(inputs.forbidden[0][order], torch.arange(rows + 1)).numpy()
        forbidden = inputs.forbidden[1][order].numpy()
    sampled = SampledTokens(torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(rows))
    arguments = (
        logits.contiguous().numpy(),
        inputs.temperature.numpy(),
        inputs.uniform.numpy(),
        starts,
        forbidden,
        sampled.tokens.numpy(),
        sampled.behaviour_logprobs.numpy(),
        sampled.engine_logprobs.numpy(),
    )
    KERNEL_THREADS.run(draw_tokens, [(*arguments, *part) for part in split_rows(rows, logits.numel())])
    return sampled


def sample_by_torch(logits: Tensor, inputs: SamplingInputs) -> SampledTokens:
    """Sample like `sample`, in torch's operations, on any device."""
    is_greedy = inputs.temperature == 0
    temperature = torch.where(is_greedy, 1.0, inputs.temperature)
    scaled = logits / temperature[:, None]
    allowed = scaled
    if inputs.forbidden is not None:
        allowed = scaled.clone()
        allowed[inputs.forbidden] = -torch.inf
    if inputs.has_truncation:
        rows = ((inputs.top_k > 0) | (inputs.top_p < 1)).nonzero()[:, 0]
        allowed = allowed.index_copy(
            0, rows, apply_top_k_top_p(allowed[rows], inputs.top_k[rows], inputs.top_p[rows])
        )
    behaviour = torch.log_softmax(allowed, dim=-1)
    cumulative = behaviour.double().exp_().cumsum(-1)
    # To the right of equal values: a token of probability 0 is never sampled. The largest uniform number is
    # 1 - 2^-52, so that the product stays below the total.
    threshold = inputs.uniform * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)
    # Only a row with NaN has no match; its log-probability is then NaN too.
    tokens.clamp_(max=logits.shape[1] - 1)
    if inputs.has_greedy:
        tokens = torch.where(is_greedy[:, None], allowed.argmax(-1, keepdim=True), tokens)
    chosen_logprobs = behaviour.gather(1, tokens)[:, 0]
    if inputs.has_greedy:
        chosen_logprobs = torch.where(is_greedy, chosen_logprobs * 0, chosen_logprobs)
    # Without truncation the two distributions are the same.
    full = behaviour if allowed is scaled else torch.log_softmax(scaled, dim=-1)
    return SampledTokens(tokens[:, 0], chosen_logprobs, full.gather(1, tokens)[:, 0])


def apply_top_k_top_p(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set logits to minus infinity for all but the `top_k` [n] likeliest tokens (0: all) and, of the
    distribution over those, all but the fewest likeliest that together hold `top_p` [n] (Holtzman et al.,
    "The curious case of neural text degeneration", 2020).

    logits [n, vocabulary]. Of equal tokens the lower id ranks first; the likeliest token always stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[1])
    ordered = ordered.masked_fill(rank >= limit[:, None], -torch.inf)
    probability = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    before = probability.cumsum(-1) - probability
    cut = (before >= top_p[:, None]) & (top_p[:, None] < 1)
    cut[:, 0] = False
    return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill(cut, -torch.inf))
