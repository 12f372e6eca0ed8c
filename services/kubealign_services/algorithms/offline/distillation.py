"""Token-level knowledge distillation (Hinton, Vinyals and Dean 2015, arXiv:1503.02531).

At each response token, with p the teacher's and q the student's softmax(logits / T), over the teacher's
top K tokens and one bucket for all others, p_rest = 1 - sum_k p_k and q_rest = 1 - sum_k q_k:

    Forward   D = sum_k p_k log(p_k / q_k) + p_rest log(p_rest / q_rest)     KL(teacher || student)
    Reverse   D = sum_k q_k log(q_k / p_k) + q_rest log(q_rest / p_rest)     KL(student || teacher)
    JensenShannon   D = beta KL(p || m) + (1 - beta) KL(q || m),    m = beta p + (1 - beta) q

The last is the generalised Jensen-Shannon divergence of Agarwal et al. 2024 (GKD, arXiv:2306.13649), over
the same buckets.

    loss = mean over response tokens of (T^2 D - c log q^1(token)),    q^1 the student at temperature 1

T^2 compensates for gradients that shrink as 1 / T^2. With K the whole vocabulary D is the KL itself; with
fewer candidates D is a lower bound of the KL (the buckets are a coarser partition).
"""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.losses.teacher_divergence import distribution_terms
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.batch.packed import Batch


class DistillationObjective:
    """Reads the token columns loss_mask, candidates [T, K] and candidate_logprobs [T, K] (the teacher's)."""

    unit = 1

    def __init__(self, entry: spec.DistillationSpec) -> None:
        self._distribution = entry
        self._coefficient = entry.cross_entropy_coefficient
        hard = {"logprobs"} if self._coefficient > 0 else set()
        self.outputs = frozenset({"candidate_logprobs"} | hard)

    def prepare(self, minibatch: Batch) -> None:
        minibatch.token_columns["token_shares"] = token_mean_shares(minibatch.token("loss_mask"))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        terms = distribution_terms(outputs, microbatch, "token_shares", self._distribution)
        if self._coefficient > 0:
            logprobs = require_output(outputs.logprobs, "logprobs")
            mask = microbatch.token("loss_mask").bool()
            shares = microbatch.token("token_shares")[mask].to(logprobs)
            cross_entropy = -(shares * logprobs[mask.to(logprobs.device)]).sum()
            terms.loss = terms.loss + self._coefficient * cross_entropy
            terms.sums["distillation/cross_entropy"] = cross_entropy.detach()
        terms.sums["distillation/loss"] = terms.loss.detach()
        return terms


class DistillationAlgorithm(OfflineAlgorithm):
    """Training of a student to imitate a teacher's distribution at each response token."""

    def __init__(self, entry: spec.DistillationSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> DistillationObjective:
        return DistillationObjective(self._spec)
