"""Checks that a model can be split as a layout says."""

from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout, layer_range


class UnsuitedLayout(ValueError):
    """The model cannot be split in this layout. The message names the spec's field and the number it must
    divide.
    """


def check_layout(shape: ModelArchitecture, layout: ParallelLayout) -> None:
    """Raise UnsuitedLayout when the model cannot be split as the layout says."""
    counts = {"attention heads": shape.heads, "key and value heads": shape.kv_heads}
    if not all(shape.is_sparse(layer) for layer in range(shape.layers)):
        counts["rows of each feed-forward layer"] = shape.mlp_size
    if shape.mixture is not None:
        counts["rows of each expert"] = shape.mixture.expert_size
        counts["rows of the shared expert"] = shape.mixture.shared_expert_size
    for noun, count in counts.items():
        if count % layout.tensor:
            raise _unsuited_layout("tensorParallel", layout.tensor, f"{count} {noun}")
    try:
        layer_range(shape.layers, layout)
    except ValueError as error:
        raise UnsuitedLayout(str(error)) from error
    if shape.mixture is None and layout.expert > 1:
        raise UnsuitedLayout(
            f"backend.megatron.expertParallel: {layout.expert}; the model has no experts: set 1"
        )
    if shape.mixture is not None and shape.mixture.experts % layout.expert:
        raise _unsuited_layout("expertParallel", layout.expert, f"{shape.mixture.experts} experts")


def _unsuited_layout(field: str, value: int, has: str) -> UnsuitedLayout:
    return UnsuitedLayout(f"backend.megatron.{field}: {value}; the model has {has}, which it must divide")
