"""Vocabulary-parallel log-probabilities and entropies: each rank holds some rows of the language-model head.

As `torch_backend.logprobs.token_logprobs` and `candidate_logprobs`, with the softmax's sums taken over the
tensor-parallel ranks (Shoeybi et al. 2019, section 3). The logits are computed for a few tokens at a time,
and again in the backward pass, and never leave their rank. Rows that only pad the vocabulary are excluded.

The gradient with respect to the hidden states is this rank's part: the caller sums it over the ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.logprobs.chunked_logits import (
    HeadGradients,
    Temperature,
    compute_logits,
    logit_chunks,
)


@dataclass(frozen=True)
class VocabularyShare:
    """Tokens of this rank's rows of the head: `count` from `first`, the rest are padding.

    Attributes:
        group: The ranks that hold the other rows; None when all are on this rank.
    """

    first: int
    count: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def for_rank(
        cls, vocabulary: int, rows: int, rank: int, group: dist.ProcessGroup | None
    ) -> "VocabularyShare":
        """Return the share of a rank.

        Args:
            vocabulary: Number of tokens.
            rows: Number of rows of each rank, padding included.
        """
        first = rank * rows
        return cls(first, min(max(0, vocabulary - first), rows), group)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(values, group=self.group)
        return values

    def all_reduce_max(self, logits: Tensor) -> Tensor:
        """Return the maximum over all ranks of logits [P, count], [P]."""
        maxima = (
            logits.amax(-1)
            if self.count
            else logits.new_full((logits.shape[0],), torch.finfo(logits.dtype).min)
        )
        if self.group is not None:
            dist.all_reduce(maxima, dist.ReduceOp.MAX, group=self.group)
        return maxima

    def local_columns(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns of tokens on this rank (any column for tokens of other ranks), and a mask of
        this rank's tokens.

        Args:
            tokens: int64.
        """
        local = tokens - self.first
        is_local = (local >= 0) & (local < self.count)
        return torch.where(is_local, local, 0), is_local

    def gather_logits(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Gather the logits of tokens, [P, K], 0 for those of other ranks.

        Args:
            logits: [P, count].
            tokens: [P, K].
        """
        if not self.count:
            return logits.new_zeros(tokens.shape)
        local, is_local = self.local_columns(tokens)
        return torch.where(is_local, logits.gather(-1, local), 0)

    def scatter_add(self, gradient: Tensor, tokens: Tensor, values: Tensor) -> None:
        """Add values [P, K] to gradient [P, count] at the tokens [P, K] of this rank."""
        if self.count:
            local, is_local = self.local_columns(tokens)
            gradient.scatter_add_(-1, local, torch.where(is_local, values, 0))


def vocab_parallel_token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: Temperature,
    with_entropy: bool,
    share: VocabularyShare,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of the targets under softmax(logits / temperature), and the entropy of that
    distribution.

    Returns (log-probabilities, entropy in nats), each [P] in at least fp32, the same on all ranks; the
    entropy is zeros when not requested. Differentiable once.

    Args:
        hidden: [P, H].
        weight: [rows, H].
        targets: int64 [P].
    """
    result: tuple[Tensor, Tensor] = _VocabParallelTokenLogprobs.apply(
        hidden, weight, targets, temperature, with_entropy, share
    )
    return result


def vocab_parallel_candidate_logprobs(
    hidden: Tensor, weight: Tensor, candidates: Tensor, temperature: Temperature, share: VocabularyShare
) -> Tensor:
    """Return the log-probability of each candidate under softmax(logits / temperature), [P, K] in at least
    fp32, the same on all ranks. Differentiable once.

    Args:
        hidden: [P, H].
        weight: [rows, H].
        candidates: int64 [P, K].
    """
    logprobs: Tensor = _VocabParallelCandidateLogprobs.apply(hidden, weight, candidates, temperature, share)
    return logprobs


@torch.no_grad()
def vocab_parallel_collision(
    hidden: Tensor, weight: Tensor, temperature: Temperature, share: VocabularyShare
) -> Tensor:
    """Compute the sum over the vocabulary of p^2, p = softmax(logits / temperature).

    Returns [P] in at least fp32, the same on all ranks, without a gradient.

    Args:
        hidden: [P, H].
        weight: [rows, H].
    """
    result = hidden.new_zeros(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))
    for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
        logits = compute_logits(hidden, weight[: share.count], None, temperature, rows)
        powers = (logits - share.all_reduce_max(logits)[:, None]).exp_()
        total, squares = share.all_reduce_sum(torch.stack([powers.sum(-1), powers.square().sum(-1)])).unbind()
        result[rows] = squares / total.square()
    return result


class _VocabParallelTokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: Temperature,
        with_entropy: bool,
        share: VocabularyShare,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_zeros(hidden.shape[0], dtype=wide) for _ in range(3))
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            logits = compute_logits(hidden, weight[: share.count], None, temperature, rows)
            target_logits = share.gather_logits(logits, targets[rows, None])[:, 0]
            highest = share.all_reduce_max(logits)
            powers = (logits - highest[:, None]).exp_()
            parts = [powers.sum(-1), target_logits]
            if with_entropy:
                parts.append(powers.mul_(logits).sum(-1))
            total, target_logits, *weighted = share.all_reduce_sum(torch.stack(parts)).unbind()
            normaliser[rows] = total.log() + highest
            logprobs[rows] = target_logits - normaliser[rows]
            if with_entropy:
                entropy[rows] = normaliser[rows] - weighted[0] / total
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.temperature, ctx.with_entropy, ctx.share = temperature, with_entropy, share
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_logprobs: Tensor | None, to_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
        share: VocabularyShare = ctx.share
        back = _head_gradients(ctx, hidden, weight)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            log_p = compute_logits(hidden, weight[: share.count], None, ctx.temperature, rows)
            log_p.sub_(normaliser[rows, None])
            # -p_j (g + g_H (log p_j + H)), and g more at the target.
            factor = torch.zeros_like(log_p)
            if to_logprobs is not None:
                factor += to_logprobs[rows, None]
            if to_entropy is not None and ctx.with_entropy:
                factor += (log_p + entropy[rows, None]).mul_(to_entropy[rows, None])
            gradient = log_p.exp_().mul_(factor).neg_()
            if to_logprobs is not None:
                share.scatter_add(gradient, targets[rows, None], to_logprobs[rows, None])
            back.add(rows, gradient)
        return back.hidden, _pad_rows(back.weight, weight), None, None, None, None


class _VocabParallelCandidateLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        candidates: Tensor,
        temperature: Temperature,
        share: VocabularyShare,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_zeros(candidates.shape, dtype=wide)
        normaliser = hidden.new_zeros(hidden.shape[0], dtype=wide)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            logits = compute_logits(hidden, weight[: share.count], None, temperature, rows)
            highest = share.all_reduce_max(logits)
            sums = (logits - highest[:, None]).exp_().sum(-1, keepdim=True)
            parts = share.all_reduce_sum(torch.cat([sums, share.gather_logits(logits, candidates[rows])], -1))
            normaliser[rows] = parts[:, 0].log() + highest
            logprobs[rows] = parts[:, 1:] - normaliser[rows, None]
        ctx.save_for_backward(hidden, weight, candidates, normaliser)
        ctx.temperature, ctx.share = temperature, share
        return logprobs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_logprobs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, candidates, normaliser = ctx.saved_tensors
        share: VocabularyShare = ctx.share
        back = _head_gradients(ctx, hidden, weight)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            upstream = to_logprobs[rows]
            log_p = compute_logits(hidden, weight[: share.count], None, ctx.temperature, rows)
            gradient = log_p.sub_(normaliser[rows, None]).exp_().mul_(-upstream.sum(-1, keepdim=True))
            share.scatter_add(gradient, candidates[rows], upstream)
            back.add(rows, gradient)
        return back.hidden, _pad_rows(back.weight, weight), None, None, None


def _head_gradients(ctx: Any, hidden: Tensor, weight: Tensor) -> HeadGradients:
    needed = (*ctx.needs_input_grad[:2], False)
    return HeadGradients(hidden, weight[: ctx.share.count], None, needed, ctx.temperature)


def _pad_rows(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    """Pad the gradient with rows of zeros for the vocabulary's padding."""
    if gradient is None or len(gradient) == len(weight):
        return gradient
    padded = torch.zeros_like(weight)
    padded[: len(gradient)] = gradient
    return padded
