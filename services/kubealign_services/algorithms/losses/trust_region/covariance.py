"""Clip-Cov and KL-Cov: restraint of the tokens that lower the policy's entropy most."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign.spec.algorithms import ClipCov, KLCov
from kubealign_services.algorithms.losses.surrogate import (
    ClippedRatio,
    PolicyActions,
    SurrogateTerms,
    bounded_ratio,
)
from kubealign_services.batch.packed import Batch

_SELECTED_SHARE = "policy/high_covariance_fraction"


@dataclass(frozen=True)
class CovarianceClip:
    """Clip-Cov (Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language
    Models", arXiv:2505.22617; verl's clip_cov).

    The clipped ratio's loss, or 0 at tokens drawn at random from those with

        low < (A - mean A) (log p_old - mean log p_old) < high

    At most max(1, fraction N) of the N response tokens are drawn; the means are over the same tokens. A drawn
    token stays counted in the mean. The draw is seeded by the minibatch's sample ids, so that it is the same
    on all ranks and after a restart.
    """

    spec: ClipCov
    clipped_ratio: ClippedRatio

    def select(self, minibatch: Batch, counted: Tensor) -> Tensor:
        covariances = _covariances(minibatch, counted)
        candidates = ((covariances > self.spec.low) & (covariances < self.spec.high)).nonzero().flatten()
        seed = zlib.crc32("\n".join(minibatch.sample_ids).encode())
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
        return _mask(candidates[order[: _count(self.spec.fraction, covariances)]], counted)

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        selected = _selection(actions)
        terms = self.clipped_ratio(actions)
        shares = terms.shares | {_SELECTED_SHARE: selected.to(terms.loss.dtype)}
        return SurrogateTerms(terms.loss.masked_fill(selected, 0.0), shares)


@dataclass(frozen=True)
class CovariancePenalty:
    """KL-Cov (Cui et al. 2025; verl's kl_cov).

        -r A + coefficient |log p - log p_old|

    with the second term at the max(1, fraction N) of N response tokens with the highest covariance
    (A - mean A) (log p_old - mean log p_old). The ratio has no bound.
    """

    spec: KLCov

    def select(self, minibatch: Batch, counted: Tensor) -> Tensor:
        covariances = _covariances(minibatch, counted)
        order = covariances.argsort(descending=True, stable=True)
        return _mask(order[: _count(self.spec.fraction, covariances)], counted)

    def __call__(self, actions: PolicyActions) -> SurrogateTerms:
        selected = _selection(actions)
        loss = -bounded_ratio(actions.log_ratio) * actions.advantages
        penalty = self.spec.coefficient * actions.log_ratio.abs()
        loss = loss + penalty.masked_fill(~selected, 0.0)
        return SurrogateTerms(loss, {_SELECTED_SHARE: selected.to(loss.dtype)})


def _covariances(minibatch: Batch, counted: Tensor) -> Tensor:
    """Return (A - mean A) (log p_old - mean log p_old) of the counted tokens, float64 [N]."""
    advantages = minibatch.token("advantages")[counted].double()
    logprobs = minibatch.token("old_logprobs")[counted].double()
    return (advantages - advantages.mean()) * (logprobs - logprobs.mean())


def _count(fraction: float, covariances: Tensor) -> int:
    return max(1, int(fraction * len(covariances)))


def _mask(indices: Tensor, counted: Tensor) -> Tensor:
    """Return the mask of these indices into the counted tokens, bool [T]."""
    mask = torch.zeros_like(counted)
    mask[counted.nonzero().flatten()[indices]] = True
    return mask


def _selection(actions: PolicyActions) -> Tensor:
    if actions.selected is None:
        raise ValueError("no tokens were selected from the minibatch: call select before the passes")
    return actions.selected
