"""RLOO: REINFORCE leave-one-out."""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm


class RLOOAlgorithm(ClippedOnlineAlgorithm):
    """Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human
    Feedback in LLMs".

    The whole response is one action, and the other samples of its prompt are its baseline:

        R_i = reward_i - beta * (sum over its tokens of KL_t)        A_i = R_i - mean of the group's other
        R

        loss = mean over sequences of -min(r_i A_i, clip(r_i) A_i),    r_i = p(response_i) /
        p_old(response_i)

    whose gradient is REINFORCE's, -A_i grad log p(response_i), where the policy has not moved yet. A
    sample that is alone in its group has advantage 0.
    """
