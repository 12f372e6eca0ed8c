"""Access to the outputs of a forward pass."""

from torch import Tensor


def require_output(output: Tensor | None, name: str) -> Tensor:
    """Return the output. Raises ValueError when the forward pass did not compute it."""
    if output is None:
        raise ValueError(f"the objective reads {name}, which the forward pass did not compute")
    return output
