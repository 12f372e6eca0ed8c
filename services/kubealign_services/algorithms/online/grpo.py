"""GRPO: group relative policy optimisation."""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm


class GRPOAlgorithm(ClippedOnlineAlgorithm):
    """Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    eq. 3 and 4.

    A token is an action; every token of a response has the response's advantage, relative to its group:

        A_i = (R_i - mean of the group) / (std of the group + epsilon)        (std with n - 1)

        loss = mean over responses of the mean over their tokens of
               -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i) + beta KL_t

    less entropy_coefficient H, with r_t = p / p_old. R is the reward; where the KL penalty is placed in
    the reward, minus beta times the response's KL.
    """
