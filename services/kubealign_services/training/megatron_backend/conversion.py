"""Mapping between one rank's parameters and the tensors of a Hugging Face checkpoint. Pure.

    conversion = WeightConversion(shape, layout, heads)
    conversion.shapes            # this rank's parameters by megatron-core's name, with their shapes
    conversion.slices_of(name)   # the rectangles that a parameter is made of
    conversion.owned_tensors     # the checkpoint tensors that this rank yields

`build_conversions` builds the conversion of every rank, so that each rank knows the parameters of the
others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kubealign.spec.megatron import MegatronBackend
from kubealign_services.training.megatron_backend import table
from kubealign_services.training.megatron_backend.families import Shape
from kubealign_services.training.megatron_backend.layout import Layout, layer_range
from kubealign_services.training.megatron_backend.layout_model import check_model
from kubealign_services.training.megatron_backend.names import (
    EXPERT,
    LAYER,
    Place,
    local_experts,
    place_of,
)
from kubealign_services.training.megatron_backend.table_parts import Part, local_shape, parts_of


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
class Source:
    """This rank's part of one checkpoint tensor: slices of one parameter."""

    parameter: str
    parts: tuple[Part, ...]


class Conversion:
    """The conversion of one rank. Raises UnsuitedLayout when the model cannot be split as the layout says."""

    def __init__(
        self, shape: Shape, layout: Layout, heads: HeadSizes, adapted: AdaptedLayers | None = None
    ) -> None:
        """Build the conversion.

        Args:
            adapted: Layers whose adapters are parameters too, see `model.lora`.
        """
        check_model(shape, layout)
        self.shape = shape
        self.layout = layout
        self.heads = heads
        self.adapted = adapted
        self._sizes = table.sizes(shape, heads.scores, 0 if adapted is None else adapted.rank)
        # Layers and experts share their slices apart from the names. Keyed by row id: rows live as long.
        self._parts: dict[int, tuple[Part, ...]] = {}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """This rank's parameters by megatron-core's names, with their shapes."""
        return {name: local_shape(row, self._sizes, self.layout) for name, row in self._rows.items()}

    @cached_property
    def owned(self) -> dict[str, Source]:
        """Checkpoint tensors that this rank yields, by name: over all ranks every element once."""
        owned: dict[str, Source] = {}
        if self.layout.copy_rank and (self.shape.mixture is None or self.layout.expert_copy_rank):
            return owned
        for name, row in self._rows.items():
            if not self._is_owner(row):
                continue
            by_tensor: dict[str, list[Part]] = {}
            for part in self.parts(name):
                by_tensor.setdefault(part.name, []).append(part)
            owned.update({tensor: Source(name, tuple(parts)) for tensor, parts in by_tensor.items()})
        return owned

    # Lazy: each rank has the conversions of all ranks, and needs most of them only to save.
    @cached_property
    def _rows(self) -> dict[str, table.Row]:
        rows: dict[str, table.Row] = {}
        for name, row in _named_rows(self.shape, self.layout, self.heads):
            rows[name] = row
            if self.adapted is not None:
                location = place_of(name, self.shape, self.layout)
                rows.update(_adapter_rows(name, row, location, self.adapted))
        return rows

    def parts(self, name: str) -> tuple[Part, ...]:
        """Return the slices of a parameter of this rank. Raises ValueError for a parameter without a row in
        the mapping.
        """
        row = self._rows.get(name)
        if row is None:
            raise ValueError(
                f"megatron-core's parameter {name} of a {self.shape.family} model has no row in the weight "
                f"mapping; this stage's are {', '.join(sorted(self._rows))}"
            )
        location = place_of(name, self.shape, self.layout)
        if id(row) not in self._parts:
            self._parts[id(row)] = parts_of(row, self._sizes, self.shape, self.layout)
        return tuple(part.named(location.fill(part.name)) for part in self._parts[id(row)])

    def split(self, name: str) -> table.Split:
        """Return the division of a parameter over the tensor ranks."""
        return self._rows[name].split

    def _is_owner(self, row: table.Row) -> bool:
        """Return True when the checkpoint takes the parameter from this rank, of all ranks that hold it."""
        if row is table.TIED_OUTPUT:
            return False
        if EXPERT in row.parameter:
            return self.layout.expert_copy_rank == 0
        return self.layout.copy_rank == 0 and (
            row.split is not table.Split.WHOLE or not self.layout.tensor_rank
        )


#: Infix between a linear layer's name and its adapters' names.
ADAPTER = ".adapters."


def of_ranks(
    shape: Shape,
    spec: MegatronBackend,
    world_size: int,
    heads: HeadSizes,
    adapted: AdaptedLayers | None = None,
) -> list[Conversion]:
    """Build the conversion of every rank."""
    return [
        Conversion(shape, Layout.of(spec, rank, world_size), heads, adapted) for rank in range(world_size)
    ]


def _named_rows(shape: Shape, layout: Layout, heads: HeadSizes) -> Iterable[tuple[str, table.Row]]:
    """Yield (name on this rank, row) of every parameter of this rank's stage."""
    if layout.is_first_stage:
        yield table.EMBEDDING.parameter, table.EMBEDDING
    for index, layer in enumerate(layer_range(shape.layers, layout)):
        for row in (*table.attention_rows(shape), *table.mlp_rows(shape, layer)):
            name = row.parameter.replace(LAYER, str(index))
            if EXPERT not in name:
                yield name, row
                continue
            for expert in range(len(local_experts(shape, layout))):
                yield name.replace(EXPERT, str(expert)), row
    if layout.is_last_stage:
        yield table.FINAL_NORM.parameter, table.FINAL_NORM
        if heads.vocabulary and not shape.tied:
            yield table.OUTPUT.parameter, table.OUTPUT
        elif heads.vocabulary and not layout.is_first_stage:
            yield table.TIED_OUTPUT.parameter, table.TIED_OUTPUT
        if heads.scores:
            yield table.SCORE.parameter, table.SCORE


def _adapter_rows(
    name: str, row: table.Row, location: Place, adapted: AdaptedLayers
) -> Iterable[tuple[str, table.Row]]:
    """Yield two rows for each adapted layer: A's columns are divided as the layer's inputs, B's rows as its
    outputs.
    """
    is_row = row.split is table.Split.ROW
    for tensor in row.tensors:
        layer, _, suffix = tensor.name.rpartition(".")
        if suffix != "weight" or location.fill(layer) not in adapted.layers:
            continue
        stem = f"{name.removesuffix('.weight')}{ADAPTER}{layer.rpartition('.')[2]}"
        down = table.Tensor(f"{layer}.lora_A.weight", ("rank", tensor.sizes[1]))
        up = table.Tensor(f"{layer}.lora_B.weight", (tensor.sizes[0], "rank"))
        down_split = table.Split.ROW if is_row else table.Split.WHOLE
        up_split = table.Split.WHOLE if is_row else table.Split.COLUMN
        yield f"{stem}.lora_A", table.Row(f"{stem}.lora_A", down_split, (down,))
        yield f"{stem}.lora_B", table.Row(f"{stem}.lora_B", up_split, (up,))
