"""Divergence of the student's distribution from a teacher's, over the teacher's candidates and a bucket of
all other tokens. The formulas are those of `algorithms.offline.distillation`.
"""

import math

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.batch.packed import Batch

#: Minimum probability of the bucket of all other tokens: fp32 cannot distinguish a lower one from 0.
LEAST_REST = 1e-6


def distribution_terms(
    outputs: ModelOutputs, microbatch: Batch, shares_column: str, entry: spec.TeacherDistribution
) -> LossTerms:
    """Return T^2 D in the mean over response tokens, and its metrics.

    Reads the token columns loss_mask, candidate_logprobs [T, K] (the teacher's) and the shares.

    Args:
        shares_column: Token column with each token's share of the mean, float64 [T].
    """
    student = require_output(outputs.candidate_logprobs, "candidate_logprobs")
    mask = microbatch.token("loss_mask").bool().to(student.device)
    shares = microbatch.token(shares_column).to(student)[mask]
    student = student[mask]
    teacher = microbatch.token("candidate_logprobs").to(student)[mask]
    divergence = (shares * divergence_between(with_rest(teacher), with_rest(student), entry)).sum()
    agrees = student.detach().argmax(-1) == teacher.argmax(-1)
    sums = {
        "distillation/kl": divergence.detach(),
        "distillation/agreement": (shares * agrees).sum(),
        "distillation/teacher_mass": (shares * teacher.exp().sum(-1)).sum(),
    }
    return LossTerms(loss=entry.temperature**2 * divergence, sums=sums)


def divergence_between(teacher: Tensor, student: Tensor, entry: spec.TeacherDistribution) -> Tensor:
    """Return the spec's divergence over buckets, of log-probabilities [N, B], as [N] in nats."""
    match entry.divergence:
        case spec.DistillationDivergence.FORWARD:
            return divergence_of(teacher, student)
        case spec.DistillationDivergence.REVERSE:
            return divergence_of(student, teacher)
        case spec.DistillationDivergence.JENSEN_SHANNON:
            return jensen_shannon(teacher, student, entry.effective_beta)


def jensen_shannon(p: Tensor, q: Tensor, beta: float) -> Tensor:
    """Compute beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q (Agarwal et al. 2024).

    Args:
        p: Log-probabilities over buckets, [N, B], as q.
        beta: Weight of p, above 0 and below 1.

    Returns [N], in nats.
    """
    mixture = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return beta * divergence_of(p, mixture) + (1 - beta) * divergence_of(q, mixture)


def with_rest(logprobs: Tensor) -> Tensor:
    """Append the log-probability of all other tokens together: K candidates [N, K] -> [N, K + 1]."""
    candidates = logprobs.logsumexp(-1, keepdim=True).clamp(max=math.log1p(-LEAST_REST))
    return torch.cat([logprobs, log1mexp(candidates)], -1)


def log1mexp(x: Tensor) -> Tensor:
    """Compute log(1 - exp(x)) for x < 0, accurate near 0 and far from it (Maechler 2012)."""
    near = x > -math.log(2)
    return torch.where(near, (-x.expm1()).log(), (-x.exp()).log1p())


def divergence_of(p: Tensor, q: Tensor) -> Tensor:
    """Compute the KL of distributions over buckets, given as log-probabilities [N, B] -> [N], in nats."""
    return (p.exp() * (p - q)).sum(-1)
