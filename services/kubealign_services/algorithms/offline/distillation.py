"""Token-level knowledge distillation (Hinton, Vinyals and Dean 2015, arXiv:1503.02531).

At each response token, with p the teacher's and q the student's softmax(logits / T), over the teacher's
top K tokens and one bucket for all others, p_rest = 1 - sum_k p_k and q_rest = 1 - sum_k q_k:

    Forward   D = sum_k p_k log(p_k / q_k) + p_rest log(p_rest / q_rest)     KL(teacher || student)
    Reverse   D = sum_k q_k log(q_k / p_k) + q_rest log(q_rest / p_rest)     KL(student || teacher)

    loss = mean over response tokens of (T^2 D - c log q^1(token)),    q^1 the student at temperature 1

T^2 compensates for gradients that shrink as 1 / T^2. With K the whole vocabulary D is the KL itself; with
fewer candidates D is a lower bound of the KL (the buckets are a coarser partition).
"""

import math

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.batch.packed import Batch

#: Minimum probability of the bucket of all other tokens: fp32 cannot distinguish a lower one from 0.
LEAST_REST = 1e-6


class DistillationObjective:
    """Reads the token columns loss_mask, candidates [T, K] and candidate_logprobs [T, K] (the teacher's)."""

    unit = 1

    def __init__(self, entry: spec.DistillationSpec) -> None:
        self._scale = entry.temperature**2
        self._forward = entry.divergence is spec.DistillationDivergence.FORWARD
        self._coefficient = entry.cross_entropy_coefficient
        hard = {"logprobs"} if self._coefficient > 0 else set()
        self.outputs = frozenset({"candidate_logprobs"} | hard)

    def prepare(self, minibatch: Batch) -> None:
        minibatch.token_columns["token_shares"] = token_mean_shares(minibatch.token("loss_mask"))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        student = require_output(outputs.candidate_logprobs, "candidate_logprobs")
        mask = microbatch.token("loss_mask").bool().to(student.device)
        shares = microbatch.token("token_shares").to(student)[mask]
        student = student[mask]
        teacher = microbatch.token("candidate_logprobs").to(student)[mask]
        p, q = with_rest(teacher), with_rest(student)
        divergence = (shares * (divergence_of(p, q) if self._forward else divergence_of(q, p))).sum()
        agrees = student.detach().argmax(-1) == teacher.argmax(-1)
        loss = self._scale * divergence
        sums = {
            "distillation/kl": divergence.detach(),
            "distillation/agreement": (shares * agrees).sum(),
            "distillation/teacher_mass": (shares * teacher.exp().sum(-1)).sum(),
        }
        if self._coefficient > 0:
            logprobs = require_output(outputs.logprobs, "logprobs")[mask]
            cross_entropy = -(shares * logprobs).sum()
            loss = loss + self._coefficient * cross_entropy
            sums["distillation/cross_entropy"] = cross_entropy.detach()
        return LossTerms(loss=loss, sums={"distillation/loss": loss.detach(), **sums})


class DistillationAlgorithm(OfflineAlgorithm):
    """Training of a student to imitate a teacher's distribution at each response token."""

    def __init__(self, entry: spec.DistillationSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> DistillationObjective:
        return DistillationObjective(self._spec)


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
