"""The policy's loss where the whole response is one action: RLOO."""

from torch import Tensor

from kubealign.spec.algorithms import Clip
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.mismatch import add_gap, prepare_gap
from kubealign_services.algorithms.outputs import required
from kubealign_services.algorithms.surrogate import clipped_surrogate
from kubealign_services.algorithms.weights import sequence_shares, token_mean_shares
from kubealign_services.batch.packed import Batch, sequence_sums


class SequencePolicyObjective:
    """mean over sequences of

        -min(r A, clip(r) A),    r = p(response) / p_old(response) = exp(sum of its log p - log p_old)

    minus entropy_coefficient times the mean entropy over response tokens. Where r is one the gradient is
    REINFORCE's, -A grad log p(response). Reads the token columns loss_mask and old_logprobs (without it the
    ratio is one by construction), and the sequence column advantages."""

    outputs = frozenset({"logprobs", "entropy"})
    unit = 1

    def __init__(self, clip: Clip, entropy_coefficient: float) -> None:
        self._clip = clip
        self._entropy_coefficient = entropy_coefficient

    def prepare(self, minibatch: Batch) -> None:
        minibatch.sequence_columns["sequence_shares"] = sequence_shares(minibatch)
        minibatch.token_columns["token_shares"] = token_mean_shares(minibatch.token("loss_mask"))
        prepare_gap(minibatch)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = required(outputs.logprobs, "logprobs")
        entropy = required(outputs.entropy, "entropy")
        mask = microbatch.token("loss_mask").bool().to(logprobs.device)
        old = (
            microbatch.token("old_logprobs").to(logprobs)
            if "old_logprobs" in microbatch.token_columns
            else logprobs.detach()
        )
        log_ratio = sequence_sums((logprobs - old).where(mask, logprobs.new_zeros(())), microbatch)
        advantages = microbatch.sequence("advantages").to(logprobs)
        terms = clipped_surrogate(log_ratio, advantages, self._clip.low, self._clip.high)

        shares = microbatch.sequence("sequence_shares").to(logprobs)
        policy = (shares * terms.loss).sum()
        mean_entropy = (microbatch.token("token_shares").to(logprobs)[mask] * entropy[mask]).sum()

        def mean(values: Tensor) -> Tensor:
            return (shares * values).sum()

        loss = policy
        if self._entropy_coefficient != 0:  # else its gradient would be computed, only to count for nothing
            loss = loss - self._entropy_coefficient * mean_entropy
        total = LossTerms(
            loss=loss,
            sums={
                "policy/loss": policy.detach(),
                "policy/clip_fraction": mean(terms.clipped),
                "policy/ratio_mean": mean(terms.ratio),
                "policy/approx_kl": mean(terms.approximate_kl),
                "policy/entropy": mean_entropy.detach(),
            },
            maxima={"policy/ratio_max": terms.ratio.max()},
        )
        return add_gap(total, logprobs, microbatch)
