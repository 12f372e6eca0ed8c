"""Policy loss, composed of surrogate, aggregation, importance weights, KL penalty and entropy."""

from functools import cache

from torch import Tensor

from kubealign.spec.algorithms import LossAggregation, OnPolicySpec, RatioLevel
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.aggregation import aggregation_shares, loss_token_mask
from kubealign_services.algorithms.losses.importance_ratio import compute_log_ratios
from kubealign_services.algorithms.losses.importance_sampling import (
    behaviour_kl,
    importance_weights,
    off_policy_mask,
)
from kubealign_services.algorithms.losses.kl_estimators import policy_kl
from kubealign_services.algorithms.losses.kl_penalty import add_kl_columns, add_kl_metrics, loss_coefficient
from kubealign_services.algorithms.losses.logprob_gap import add_gap_columns, add_gap_metrics
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.losses.surrogate import (
    PolicyActions,
    SelectiveSurrogate,
    Surrogate,
    bounded_ratio,
    ratio_metrics,
)
from kubealign_services.algorithms.losses.top_entropy import add_entropy_threshold, high_entropy_tokens
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.samples import merge_samples

_LOSS, _METRICS, _TOKENS = "loss_shares", "figure_shares", "token_shares"
_POSITIVE = "positive_shares"
_SELECTED = "selected_tokens"


class PolicyObjective:
    """Sum over response tokens of share * (w * surrogate + beta KL(policy || reference)), less
    entropy_coefficient times the mean entropy over response tokens.

    The shares are those of the spec's aggregation, counted over the whole minibatch, where a response is a
    sample with all its sequences; a ratio or an importance weight per response is one per sequence. w are the
    importance weights, 1 without importance correction; tokens masked by w stay counted.

    With top_entropy_fraction the surrogate of a token below the minibatch's entropy threshold is 0
    (`top_entropy`); the token stays counted, and keeps its part of the other terms.

    With positive_nll_coefficient, plus that coefficient times the mean negative log-likelihood over the
    tokens of responses with a reward above 0 (sequence column rewards).

    Reads the token columns loss_mask, advantages, old_logprobs (without the column the ratio is one by
    construction), engine_logprobs for importance and the off-policy mask, old_entropy for
    top_entropy_fraction, reference_logprobs for a KL penalty in the loss, and the sequence column truncated
    for mask_truncated. Metrics are means over tokens; for a ratio per response, over responses.
    """

    outputs = frozenset({"logprobs", "entropy"})
    unit = 1

    def __init__(
        self, entry: OnPolicySpec, surrogate: Surrogate, level: RatioLevel = RatioLevel.TOKEN
    ) -> None:
        self._spec = entry
        self._surrogate = surrogate
        self._level = level
        self._importance = entry.effective_importance
        self._beta = loss_coefficient(entry.kl)

    def prepare(self, minibatch: Batch) -> None:
        counted = loss_token_mask(minibatch, self._spec.mask_truncated)
        columns = minibatch.token_columns
        samples = merge_samples(minibatch)
        columns[_LOSS] = aggregation_shares(samples, counted, self._spec.aggregation)
        columns[_TOKENS] = columns[_METRICS] = token_mean_shares(counted)
        if self._level is not RatioLevel.TOKEN:
            columns[_METRICS] = aggregation_shares(samples, counted, LossAggregation.SEQUENCE_MEAN)
        if self._spec.positive_nll_coefficient > 0:
            positive = (minibatch.sequence("rewards") > 0)[minibatch.sequence_of_token]
            columns[_POSITIVE] = token_mean_shares(counted & positive)
        if isinstance(self._surrogate, SelectiveSurrogate):
            columns[_SELECTED] = self._surrogate.select(minibatch, counted)
        if self._spec.top_entropy_fraction is not None:
            add_entropy_threshold(minibatch, counted, self._spec.top_entropy_fraction)
        add_kl_columns(minibatch, self._spec.kl)
        add_gap_columns(minibatch)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = require_output(outputs.logprobs, "logprobs")
        counted = microbatch.token(_TOKENS) > 0
        counted_on_device = counted.to(logprobs.device)

        @cache
        def column(name: str) -> Tensor:
            return microbatch.token(name)[counted].to(logprobs)

        new, shares, metric_shares = logprobs[counted_on_device], column(_LOSS), column(_METRICS)
        old = column("old_logprobs") if "old_logprobs" in microbatch.token_columns else new.detach()
        sequence = microbatch.sequence_of_token[counted].to(logprobs.device)
        ratio = compute_log_ratios(new - old, sequence, self._level)
        selected = microbatch.token_columns.get(_SELECTED)
        if selected is not None:
            selected = selected[counted].to(logprobs.device)
        terms = self._surrogate(PolicyActions(new, ratio.value, column("advantages"), sequence, selected))

        policy = terms.loss * ratio.action_share
        entropy = (column(_TOKENS) * require_output(outputs.entropy, "entropy")[counted_on_device]).sum()
        sums = {name: (metric_shares * each).sum() for name, each in terms.shares.items()}
        sums |= ratio_metrics(ratio.value, metric_shares) | {"policy/entropy": entropy.detach()}
        maxima = {"policy/ratio_max": _max_or_zero(bounded_ratio(ratio.value.detach()))}
        if self._importance is not None:
            # Log-probabilities under the whole softmax, like the numerator's: those of a distribution that
            # topP, topK or minTokens cut are higher, and the weight of a long response would vanish.
            engine = column("engine_logprobs")
            weights = importance_weights(old - engine, sequence, self._importance)
            policy = policy * weights.applied
            sums |= {
                "importance/mean": (metric_shares * weights.applied).sum(),
                "importance/outside_share": (metric_shares * weights.outside).sum(),
                "policy/behaviour_kl": (column(_TOKENS) * behaviour_kl(old, engine)).sum(),
            }
            maxima["importance/max"] = _max_or_zero(weights.raw)
        if self._spec.off_policy_mask is not None:
            masked = off_policy_mask(
                new, column("engine_logprobs"), column("advantages"), sequence, self._spec.off_policy_mask
            )
            policy = policy.masked_fill(masked, 0.0)
            sums["policy/off_policy_masked_fraction"] = (metric_shares * masked).sum()
        if self._spec.top_entropy_fraction is not None:
            is_high, metrics = high_entropy_tokens(microbatch, counted, column(_TOKENS))
            policy = policy.masked_fill(~is_high, 0.0)
            sums |= metrics
        loss = (shares * policy).sum()
        sums["policy/loss"] = loss.detach()
        if self._spec.entropy_coefficient != 0:  # skip the gradient of a term without effect
            loss = loss - self._spec.entropy_coefficient * entropy
        if self._spec.positive_nll_coefficient > 0:
            nll = -(column(_POSITIVE) * new).sum()
            loss = loss + self._spec.positive_nll_coefficient * nll
            sums["policy/positive_nll"] = nll.detach()
        if self._beta > 0:
            sampled = old if self._importance is None else column("engine_logprobs")
            divergence = (shares * policy_kl(new, sampled, column("reference_logprobs"), self._spec)).sum()
            loss = loss + self._beta * divergence
            sums["policy/kl_loss"] = divergence.detach()
        terms_with_kl = add_kl_metrics(LossTerms(loss, sums, maxima), logprobs, microbatch, self._spec.kl)
        return add_gap_metrics(terms_with_kl, logprobs, microbatch)


def _max_or_zero(values: Tensor) -> Tensor:
    return values.max() if len(values) else values.sum()
