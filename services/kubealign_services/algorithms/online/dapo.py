"""DAPO: decoupled clip and dynamic sampling policy optimisation."""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm


class DAPOAlgorithm(ClippedOnlineAlgorithm):
    """Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", eq. 8 to 13.

    GRPO with four changes, each a field:

        A_i = (R_i - mean of the group) / (std of the group + epsilon)

        loss = mean over all response tokens of -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i)

    clip: high (0.28) above low (0.2), so that unlikely tokens may grow. aggregation TokenMean: tokens of
    long responses are not down-weighted. dynamic_sampling: groups whose samples all have the same reward,
    and so advantage 0, are dropped when the batch is taken and replaced. overlong: a reward penalty before
    the length limit; mask_truncated: truncated responses are excluded from the loss. No KL penalty.
    """
