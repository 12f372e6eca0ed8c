"""Statistics of advantages and returns."""

from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of values where mask is non-zero; 0 where the mask is empty.

    Scalar, in the dtype of values.
    """
    selected = values[mask.bool()]
    return selected.sum() / max(len(selected), 1)


def advantage_metrics(advantages: Tensor, returns: Tensor) -> dict[str, float]:
    """Return the metrics of advantages and returns of the response tokens, or of the responses: both [N]."""
    return {
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std()) if len(advantages) > 1 else 0.0,
        "return/mean": float(returns.mean()),
    }
