"""Metrics of advantages and returns."""

from torch import Tensor


def advantage_metrics(advantages: Tensor, returns: Tensor) -> dict[str, float]:
    """Return the metrics of advantages and returns of the response tokens, or of the responses: both [N]."""
    return {
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std()) if len(advantages) > 1 else 0.0,
        "return/mean": float(returns.mean()),
    }
