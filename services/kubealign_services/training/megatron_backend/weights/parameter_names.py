"""Maps a parameter name of megatron-core to its layer and expert in the whole model. Pure.

megatron-core numbers layers from 0 in each stage and experts from 0 on each rank.
"""

import re
from dataclasses import dataclass

from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout, layer_range

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"^mlp\.experts\.local_experts\.(\d+)\.(.+)$")

#: Placeholders in the rows of the mapping.
LAYER, EXPERT = "{layer}", "{expert}"
IN_LAYER = f"decoder.layers.{LAYER}."
IN_EXPERT = f"mlp.experts.local_experts.{EXPERT}."


@dataclass(frozen=True)
class ParameterLocation:
    """A parameter's name with the placeholders LAYER and EXPERT, and their numbers in the whole model."""

    pattern: str
    layer: int | None
    expert: int | None

    def fill_indices(self, name: str) -> str:
        """Return a Hugging Face name with the placeholders replaced."""
        return name.replace(LAYER, str(self.layer)).replace(EXPERT, str(self.expert))


def locate_parameter(name: str, shape: ModelArchitecture, layout: ParallelLayout) -> ParameterLocation:
    """Locate a parameter by its name on this rank."""
    in_layer = _LAYER.match(name)
    if in_layer is None:
        return ParameterLocation(name, None, None)
    layer = layer_range(shape.layers, layout).start + int(in_layer[1])
    of_expert = _EXPERT.match(in_layer[2])
    if of_expert is None:
        return ParameterLocation(IN_LAYER + in_layer[2], layer, None)
    expert = local_experts(shape, layout).start + int(of_expert[1])
    return ParameterLocation(IN_LAYER + IN_EXPERT + of_expert[2], layer, expert)


def local_experts(shape: ModelArchitecture, layout: ParallelLayout) -> range:
    """Return the experts of each mixture on this rank."""
    if shape.mixture is None:
        return range(0)
    each = shape.mixture.experts // layout.expert
    return range(layout.expert_rank * each, (layout.expert_rank + 1) * each)
