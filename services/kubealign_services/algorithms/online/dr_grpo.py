"""Dr. GRPO: GRPO done right."""

from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm


class DrGRPOAlgorithm(ClippedOnlineAlgorithm):
    """Liu et al. 2025, "Understanding R1-Zero-Like Training: A Critical Perspective", section 3.2.

    GRPO without its two divisions: by the group's standard deviation, which over-weights prompts that are
    too easy or too hard, and by the response's length, which lets wrong responses grow:

        A_i = R_i - mean of the group

        loss = mean over responses of (sum over their tokens of
               -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i)) / maxTokens
    """
