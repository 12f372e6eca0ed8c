"""Reading what a forward pass gave."""

from torch import Tensor


def required(output: Tensor | None, name: str) -> Tensor:
    """The output. Raises ValueError when the forward pass left it out."""
    if output is None:
        raise ValueError(f"the objective reads {name}, and the forward pass did not give it")
    return output
