"""Log-probabilities and entropies where each rank holds some rows of the vocabulary's head.

As `torch_backend.token_logprobs` and `torch_backend.candidates`, with the softmax's sums taken over the
tensor-parallel ranks (Shoeybi et al. 2019, section 3). The logits are made for a few tokens at a time, and
again in the backward pass, and never leave their rank. Rows that only pad the vocabulary are left out.

The gradient with respect to the hidden states is this rank's part: the caller sums it over the ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.chunked_logits import HeadGradients, chunks, logits_of


@dataclass(frozen=True)
class VocabularyShare:
    """Which tokens this rank's rows are of: `count` from `first`, the rest are padding. group: the ranks that
    hold the others; None: all are here."""

    first: int
    count: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, vocabulary: int, rows: int, rank: int, group: dist.ProcessGroup | None) -> "VocabularyShare":
        """vocabulary: how many tokens there are. rows: how many each rank has, padding included."""
        first = rank * rows
        return cls(first, min(max(0, vocabulary - first), rows), group)

    def summed(self, values: Tensor) -> Tensor:
        """Over the ranks, in place."""
        if self.group is not None:
            dist.all_reduce(values, group=self.group)
        return values

    def highest(self, logits: Tensor) -> Tensor:
        """[P, count] -> [P], over all ranks."""
        found = (
            logits.amax(-1)
            if self.count
            else logits.new_full((logits.shape[0],), torch.finfo(logits.dtype).min)
        )
        if self.group is not None:
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found

    def places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens int64 -> (their columns here, or some column; whether they are here)."""
        local = tokens - self.first
        here = (local >= 0) & (local < self.count)
        return torch.where(here, local, 0), here

    def picked(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """logits [P, count], tokens [P, K] -> [P, K], 0 for those that are not here."""
        if not self.count:
            return logits.new_zeros(tokens.shape)
        local, here = self.places(tokens)
        return torch.where(here, logits.gather(-1, local), 0)

    def scatter(self, gradient: Tensor, tokens: Tensor, values: Tensor) -> None:
        """Add values [P, K] to gradient [P, count] where the tokens [P, K] are, if they are here."""
        if self.count:
            local, here = self.places(tokens)
            gradient.scatter_add_(-1, local, torch.where(here, values, 0))


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    with_entropy: bool,
    share: VocabularyShare,
) -> tuple[Tensor, Tensor]:
    """hidden [P, H], weight [rows, H], targets int64 [P] -> (log-probability of each target under
    softmax(logits / temperature), entropy of that distribution in nats), each [P] in at least fp32, the same
    on all ranks; the entropy is zeros where it is not wanted. Can be differentiated once."""
    found: tuple[Tensor, Tensor] = _TokenLogprobs.apply(
        hidden, weight, targets, temperature, with_entropy, share
    )
    return found


def candidate_logprobs(
    hidden: Tensor, weight: Tensor, candidates: Tensor, temperature: float, share: VocabularyShare
) -> Tensor:
    """hidden [P, H], weight [rows, H], candidates int64 [P, K] -> log-probability of each candidate under
    softmax(logits / temperature), [P, K] in at least fp32, the same on all ranks. Can be differentiated
    once."""
    found: Tensor = _CandidateLogprobs.apply(hidden, weight, candidates, temperature, share)
    return found


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        share: VocabularyShare,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_zeros(hidden.shape[0], dtype=wide) for _ in range(3))
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            logits = logits_of(hidden[rows], weight[: share.count], None, temperature)
            chosen = share.picked(logits, targets[rows, None])[:, 0]
            highest = share.highest(logits)
            powers = (logits - highest[:, None]).exp_()
            parts = [powers.sum(-1), chosen]
            if with_entropy:
                parts.append(powers.mul_(logits).sum(-1))
            total, chosen, *weighted = share.summed(torch.stack(parts)).unbind()
            normaliser[rows] = total.log() + highest
            logprobs[rows] = chosen - normaliser[rows]
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
        back = _gradients(ctx, hidden, weight)
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            log_p = logits_of(hidden[rows], weight[: share.count], None, ctx.temperature)
            log_p.sub_(normaliser[rows, None])
            # -p_j (g + g_H (log p_j + H)), and g more at the target.
            factor = torch.zeros_like(log_p)
            if to_logprobs is not None:
                factor += to_logprobs[rows, None]
            if to_entropy is not None and ctx.with_entropy:
                factor += (log_p + entropy[rows, None]).mul_(to_entropy[rows, None])
            gradient = log_p.exp_().mul_(factor).neg_()
            if to_logprobs is not None:
                share.scatter(gradient, targets[rows, None], to_logprobs[rows, None])
            back.add(rows, gradient)
        return back.hidden, _padded(back.weight, weight), None, None, None, None


class _CandidateLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        candidates: Tensor,
        temperature: float,
        share: VocabularyShare,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_zeros(candidates.shape, dtype=wide)
        normaliser = hidden.new_zeros(hidden.shape[0], dtype=wide)
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            logits = logits_of(hidden[rows], weight[: share.count], None, temperature)
            highest = share.highest(logits)
            sums = (logits - highest[:, None]).exp_().sum(-1, keepdim=True)
            parts = share.summed(torch.cat([sums, share.picked(logits, candidates[rows])], -1))
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
        back = _gradients(ctx, hidden, weight)
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            given = to_logprobs[rows]
            log_p = logits_of(hidden[rows], weight[: share.count], None, ctx.temperature)
            gradient = log_p.sub_(normaliser[rows, None]).exp_().mul_(-given.sum(-1, keepdim=True))
            share.scatter(gradient, candidates[rows], given)
            back.add(rows, gradient)
        return back.hidden, _padded(back.weight, weight), None, None, None


def _gradients(ctx: Any, hidden: Tensor, weight: Tensor) -> HeadGradients:
    wanted = (*ctx.needs_input_grad[:2], False)
    return HeadGradients(hidden, weight[: ctx.share.count], None, wanted, ctx.temperature)


def _padded(gradient: Tensor | None, weight: Tensor) -> Tensor | None:
    """The padding's rows have none."""
    if gradient is None or len(gradient) == len(weight):
        return gradient
    whole = torch.zeros_like(weight)
    whole[: len(gradient)] = gradient
    return whole
