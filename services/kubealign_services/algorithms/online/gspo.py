"""GSPO: group sequence policy optimisation."""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm


class GSPOAlgorithm(ClippedOnlineAlgorithm):
    """Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 5 to 7.

    The reward is given per response, so the ratio is the response's, as the geometric mean over its n_i
    tokens:

        s_i = (p(response_i) / p_old(response_i))^(1 / n_i)
        A_i = (R_i - mean of the group) / (std of the group + epsilon)

        loss = mean over responses of -min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)

    The clip range applies to a mean over many tokens and is therefore a few ten-thousandths.
    """
