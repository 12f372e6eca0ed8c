"""Mapping between one rank's parameters and the tensors of a Hugging Face checkpoint. Pure.

    conversion = WeightConversion(shape, layout, heads)
    conversion.shapes            # this rank's parameters by megatron-core's name, with their shapes
    conversion.slices_of(name)   # the rectangles that a parameter is made of
    conversion.owned_tensors     # the checkpoint tensors that this rank yields

`build_conversions` builds the conversion of every rank, so that each rank knows the parameters of the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.parallel.layout import (
    ParallelLayout,
    check_layout,
    layer_range,
)
from kubealign_services.training.megatron_backend.weights import weight_mapping
from kubealign_services.training.megatron_backend.weights.mapping_slices import (
    MappedSlice,
    local_shape,
    mapped_slices,
)
from kubealign_services.training.megatron_backend.weights.parameter_names import (
    EXPERT,
    LAYER,
    ParameterLocation,
    local_experts,
    locate_parameter,
)


@dataclass(frozen=True)
class HeadSizes:
    """Heads on the trunk's last stage.

    Attributes:
        vocabulary: True with a language-model head.
        scores: Outputs of `score.weight`, 0 for none.
    """

    vocabulary: bool = True
    scores: int = 0


@dataclass(frozen=True)
class AdaptedLayers:
    """Linear layers with an adapter, by their Hugging Face names, and the adapters' rank."""

    rank: int
    layers: frozenset[str]


@dataclass(frozen=True)
class TensorSource:
    """Part of one checkpoint tensor on the present rank: slices of one parameter."""

    parameter: str
    slices: tuple[MappedSlice, ...]


class WeightConversion:
    """The conversion of one rank. Raises UnsuitedLayout when the model cannot be split as the layout says."""

    def __init__(
        self,
        shape: ModelArchitecture,
        layout: ParallelLayout,
        heads: HeadSizes,
        adapted: AdaptedLayers | None = None,
    ) -> None:
        """Build the conversion.

        Args:
            adapted: Layers whose adapters are parameters too, see `model.lora`.
        """
        check_layout(shape, layout)
        self.shape = shape
        self.layout = layout
        self.heads = heads
        self.adapted = adapted
        self._sizes = weight_mapping.dimension_sizes(
            shape, heads.scores, 0 if adapted is None else adapted.rank
        )
        # Layers and experts share their slices apart from the names. Keyed by row id: rows live as long.
        self._parts: dict[int, tuple[MappedSlice, ...]] = {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters of the present rank by megatron-core's names, with their shapes."""
        return {name: local_shape(row, self._sizes, self.layout) for name, row in self._rows.items()}

    @cached_property
    def owned_tensors(self) -> dict[str, TensorSource]:
        """Checkpoint tensors that this rank yields, by name: over all ranks every element once."""
        owned: dict[str, TensorSource] = {}
        if self.layout.replica_rank and (self.shape.mixture is None or self.layout.expert_replica_rank):
            return owned
        for name, row in self._rows.items():
            if not self._is_owner(row):
                continue
            by_tensor: dict[str, list[MappedSlice]] = {}
            for part in self.slices_of(name):
                by_tensor.setdefault(part.name, []).append(part)
            owned.update({tensor: TensorSource(name, tuple(parts)) for tensor, parts in by_tensor.items()})
        return owned

    # Lazy: each rank has the conversions of all ranks, and needs most of them only to save.
    @cached_property
    def _rows(self) -> dict[str, weight_mapping.MappingRow]:
        rows: dict[str, weight_mapping.MappingRow] = {}
        for name, row in _named_rows(self.shape, self.layout, self.heads):
            rows[name] = row
            if self.adapted is not None:
                location = locate_parameter(name, self.shape, self.layout)
                rows.update(_adapter_rows(name, row, location, self.adapted))
        return rows

    def slices_of(self, name: str) -> tuple[MappedSlice, ...]:
        """Return the slices of a parameter of this rank.

        Raises ValueError for a parameter without a row in the mapping.
        """
        row = self._rows.get(name)
        if row is None:
            raise ValueError(
                f"megatron-core's parameter {name} of a {self.shape.family} model has no row in the weight "
                f"mapping; this stage's are {', '.join(sorted(self._rows))}"
            )
        location = locate_parameter(name, self.shape, self.layout)
        if id(row) not in self._parts:
            self._parts[id(row)] = mapped_slices(row, self._sizes, self.shape, self.layout)
        return tuple(part.with_name(location.fill_indices(part.name)) for part in self._parts[id(row)])

    def split_of(self, name: str) -> weight_mapping.TensorSplit:
        """Return the division of a parameter over the tensor ranks."""
        return self._rows[name].split

    def _is_owner(self, row: weight_mapping.MappingRow) -> bool:
        """Return True when the checkpoint takes the parameter from this rank, of all ranks that hold it."""
        if row is weight_mapping.TIED_OUTPUT:
            return False
        if EXPERT in row.parameter:
            return self.layout.expert_replica_rank == 0
        return self.layout.replica_rank == 0 and (
            row.split is not weight_mapping.TensorSplit.WHOLE or not self.layout.tensor_rank
        )


#: Infix between a linear layer's name and its adapters' names.
ADAPTER_MARK = ".adapters."


def build_conversions(
    shape: ModelArchitecture,
    spec: MegatronBackendSpec,
    world_size: int,
    heads: HeadSizes,
    adapted: AdaptedLayers | None = None,
) -> list[WeightConversion]:
    """Build the conversion of every rank."""
    return [
        WeightConversion(shape, ParallelLayout.from_spec(spec, rank, world_size), heads, adapted)
        for rank in range(world_size)
    ]


def _named_rows(
    shape: ModelArchitecture, layout: ParallelLayout, heads: HeadSizes
) -> Iterable[tuple[str, weight_mapping.MappingRow]]:
    """Yield (name on this rank, row) of every parameter of this rank's stage."""
    if layout.is_first_stage:
        yield weight_mapping.EMBEDDING.parameter, weight_mapping.EMBEDDING
    for index, layer in enumerate(layer_range(shape.layers, layout)):
        for row in (*weight_mapping.attention_rows(shape), *weight_mapping.mlp_rows(shape, layer)):
            name = row.parameter.replace(LAYER, str(index))
            if EXPERT not in name:
                yield name, row
                continue
            for expert in range(len(local_experts(shape, layout))):
                yield name.replace(EXPERT, str(expert)), row
    if layout.is_last_stage:
        yield weight_mapping.FINAL_NORM.parameter, weight_mapping.FINAL_NORM
        if heads.vocabulary and not shape.tied:
            yield weight_mapping.OUTPUT.parameter, weight_mapping.OUTPUT
        elif heads.vocabulary and not layout.is_first_stage:
            yield weight_mapping.TIED_OUTPUT.parameter, weight_mapping.TIED_OUTPUT
        if heads.scores:
            yield weight_mapping.SCORE.parameter, weight_mapping.SCORE


def _adapter_rows(
    name: str, row: weight_mapping.MappingRow, location: ParameterLocation, adapted: AdaptedLayers
) -> Iterable[tuple[str, weight_mapping.MappingRow]]:
    """Yield two rows for each adapted layer: A's columns are divided as the layer's inputs, B's rows as its
    outputs.
    """
    is_row = row.split is weight_mapping.TensorSplit.ROW
    for tensor in row.tensors:
        layer, _, suffix = tensor.name.rpartition(".")
        if suffix != "weight" or location.fill_indices(layer) not in adapted.layers:
            continue
        stem = f"{name.removesuffix('.weight')}{ADAPTER_MARK}{layer.rpartition('.')[2]}"
        down = weight_mapping.CheckpointTensor(f"{layer}.lora_A.weight", ("rank", tensor.sizes[1]))
        up = weight_mapping.CheckpointTensor(f"{layer}.lora_B.weight", (tensor.sizes[0], "rank"))
        down_split = weight_mapping.TensorSplit.ROW if is_row else weight_mapping.TensorSplit.WHOLE
        up_split = weight_mapping.TensorSplit.WHOLE if is_row else weight_mapping.TensorSplit.COLUMN
        yield f"{stem}.lora_A", weight_mapping.MappingRow(f"{stem}.lora_A", down_split, (down,))
        yield f"{stem}.lora_B", weight_mapping.MappingRow(f"{stem}.lora_B", up_split, (up,))
