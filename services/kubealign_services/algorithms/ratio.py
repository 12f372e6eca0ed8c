"""Of what the policy's probability is compared with the old one: of a token, or of a whole response."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign.spec.algorithms import RatioLevel


@dataclass(frozen=True)
class LogRatio:
    """Both [N], one entry for each response token. value: the logarithm of the ratio, with gradient. part:
    which part of its response's action a token is."""

    value: Tensor
    part: Tensor


def log_ratios(difference: Tensor, sequence: Tensor, level: RatioLevel) -> LogRatio:
    """From d_t = log p - log p_old of each token of responses of n tokens:

        Token           d_t
        Sequence        sum of d         = log p(response) / p_old(response)
        SequenceMean    (sum of d) / n   (Zheng et al. 2025, "GSPO", eq. 7)

    A response's ratio stands at each of its tokens, with a part of its gradient that is the token's own, so
    that tokens may differ in their advantages (GSPO-token, eq. 14: sg[s] p_t / sg[p_t]). Its mean over the
    tokens is the ratio, in value and in gradient. With Sequence the response is one action, which counts
    once: each of its tokens is 1 / n of it; else each token is one.

    difference: [N], with gradient. sequence: int64 [N], the response of each, from 0, on the same device."""
    whole = torch.ones_like(difference.detach())
    if level is RatioLevel.TOKEN:
        return LogRatio(difference, whole)
    own = difference.detach()
    moves = difference - own
    lengths, total = response_sums(whole, sequence), response_sums(own, sequence)
    if level is RatioLevel.SEQUENCE:
        return LogRatio(total + lengths * moves, 1 / lengths)
    return LogRatio(total / lengths + moves, whole)


def response_sums(values: Tensor, sequence: Tensor) -> Tensor:
    """At each token the sum over its response, [N]. values: [N]. sequence: as `log_ratios`."""
    empty = values.new_zeros(int(sequence.max()) + 1 if len(sequence) else 0)
    return empty.index_add(0, sequence, values)[sequence]
