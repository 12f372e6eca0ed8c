"""Checks of an adapter against the matrices that it adapts. Pure."""

from collections.abc import Mapping, Set
from typing import TypeAlias

from kubealign_services.training.adapters.lora import LowRankAdapter

#: (outputs, inputs) of a linear layer.
LayerShape: TypeAlias = tuple[int, int]


def check_adapter(
    adapters: Mapping[str, LowRankAdapter], shapes: Mapping[str, LayerShape], earlier: Set[str]
) -> None:
    """Raise ValueError for a layer that the base does not have, for shapes that do not match, and for a
    missing layer of an earlier adapter.

    Args:
        shapes: Shape of each linear layer by its name.
        earlier: Layers of the adapters before.
    """
    missing = earlier - adapters.keys()
    if missing:
        raise ValueError(f"adapter: {len(missing)} layers did not come: {', '.join(sorted(missing)[:4])}")
    for layer, adapter in adapters.items():
        shape = shapes.get(layer)
        if shape is None:
            raise ValueError(f"adapter: the model has no linear layer {layer!r}")
        outputs, inputs = shape
        down, up = adapter.down.shape, adapter.up.shape
        if len(down) != 2 or down[1] != inputs or up != (outputs, down[0]):
            raise ValueError(
                f"adapter: the parts of {layer} have the shapes {list(down)} and {list(up)}, the layer "
                f"{list(shape)}"
            )
