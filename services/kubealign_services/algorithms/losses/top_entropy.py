"""Selection of the tokens with the highest entropy, the only ones with a policy gradient."""

import math

from torch import Tensor

from kubealign_services.batch.packed import Batch

_THRESHOLD = "entropy_threshold"


def add_entropy_threshold(minibatch: Batch, counted: Tensor, fraction: float) -> None:
    """Add `entropy_threshold` as a scalar, before the split."""
    minibatch.scalars[_THRESHOLD] = entropy_threshold(minibatch, counted, fraction)


def high_entropy_tokens(
    microbatch: Batch, counted: Tensor, shares: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mask of the counted tokens at or above the threshold, bool [N], and the metrics
    policy/high_entropy_fraction and policy/entropy_threshold.

    Args:
        counted: bool [T].
        shares: Share of each counted token in the minibatch's mean, [N], whose device the mask has.
    """
    threshold = microbatch.scalars[_THRESHOLD]
    mask = (microbatch.token("old_entropy")[counted] >= threshold).to(shares.device)
    return mask, {
        "policy/high_entropy_fraction": (shares * mask).sum(),
        "policy/entropy_threshold": shares.sum() * threshold,
    }


def entropy_threshold(minibatch: Batch, counted: Tensor, fraction: float) -> float:
    """Return the 1 - fraction quantile of the entropies of a minibatch's response tokens, in nats.

    Tokens at or above it have a policy gradient (Wang et al. 2025, "Beyond the 80/20 Rule", arXiv:2506.01939,
    eq. 5; TRL's top_entropy_quantile). Of n tokens it is the smallest entropy that is not below the quantile
    interpolated between the ranks around (1 - fraction) (n - 1): the same tokens are at or above either.
    0 without tokens.

    Reads the token column old_entropy: the entropies before the step, which are known for the whole
    minibatch, so that the selection does not depend on the split.

    Args:
        counted: Response tokens that are trained on, bool [T].
    """
    entropies = minibatch.token("old_entropy")[counted]
    if not len(entropies):
        return 0.0
    # The product of a whole number may come out a little above it: (1 - 1/3) 9 is 6.000000000000001.
    rank = math.ceil((1 - fraction) * (len(entropies) - 1) - 1e-9)
    return float(entropies.kthvalue(rank + 1).values)
