"""GRPO with the settings of its paper."""

from kubealign_services.algorithms.online.grpo import GRPOAlgorithm


class DeepSeekMathAlgorithm(GRPOAlgorithm):
    """Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    eq. 3 and 4 and section 4.2.

    The loss is that of GRPO; the settings are the paper's: the mean of each response's tokens, then of the
    responses, with beta = 0.04 and the estimator K3.
    """
