"""This rank's parameters as slices of the checkpoint, and gathering of all ranks' slices into full tensors.

local_slices(conversion, parameters, dtype)           # for weight sync: each element from one rank only
gather_tensors(conversions, rank, parameters, dtype)  # full tensors, one after the other, on rank 0
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.training.adapters.lora import LowRankAdapter
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout
from kubealign_services.training.megatron_backend.weights.conversion import (
    ADAPTER_MARK,
    TensorSource,
    WeightConversion,
)
from kubealign_services.training.megatron_backend.weights.mapping_slices import MappedSlice
from kubealign_services.training.weight_slices import WeightSlice

#: Selects checkpoint tensors by the name of the parameter that holds them.
ParameterFilter = Callable[[str], bool]


def is_weight(parameter: str) -> bool:
    """Parameter filter: all but adapters."""
    return ADAPTER_MARK not in parameter


def is_adapter(parameter: str) -> bool:
    """Parameter filter: adapters alone."""
    return ADAPTER_MARK in parameter


def is_any(parameter: str) -> bool:
    """Parameter filter: all parameters."""
    return bool(parameter)


def is_trunk(parameter: str) -> bool:
    """Parameter filter: all but adapters and the value or score head, as in the torch backend's snapshot."""
    return is_weight(parameter) and parameter != "score.weight"


def merge_adjacent(parts: Sequence[MappedSlice]) -> list[list[MappedSlice]]:
    """Group the slices of one tensor, in order, into runs that are adjacent along the first dimension."""
    runs: list[list[MappedSlice]] = []
    for part in parts:
        previous = runs[-1][-1] if runs else None
        if (
            previous is not None
            and previous.start[0] + previous.size[0] == part.start[0]
            and previous.start[1:] == part.start[1:]
            and previous.size[1:] == part.size[1:]
        ):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def local_slices(
    conversion: WeightConversion,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    keep: ParameterFilter = is_trunk,
    scale: float = 1.0,
) -> Iterator[WeightSlice]:
    """Yield this rank's slices of the checkpoint: over all ranks each element exactly once, tied weights
    once, padding stripped.

    A slice shares the parameter's memory when it is one rectangle of it in the same dtype.

    Args:
        parameters: This rank's, by megatron-core's names.
        dtype: Dtype of the slices; None for the parameters' own.
        scale: alpha / rank of the adapters, which are merged into their layers.
    """
    for name, source in conversion.owned_tensors.items():
        if keep(source.parameter):
            yield from _owned_slices(conversion, name, source, parameters, dtype, scale)


def gather_tensors(
    conversions: Sequence[WeightConversion],
    rank: int,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype,
    keep: ParameterFilter = is_trunk,
    scale: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield (checkpoint name, CPU tensor of dtype) of every tensor in full; collective.

    On ranks other than 0 the tensors are empty.

    Rank 0 holds one full tensor at a time: the others send their slices on demand.

    Args:
        conversions: Conversions of all ranks.
        group: A gloo group over all ranks; None for the default one.
    """
    conversion = conversions[rank]
    owners = tensor_owners(conversions, keep) if rank == 0 else {}
    for name in full_shapes(conversion, keep):
        pieces: list[WeightSlice] = []
        if name in conversion.owned_tensors:
            pieces.extend(
                _owned_slices(conversion, name, conversion.owned_tensors[name], parameters, dtype, scale)
            )
        if rank == 0:
            yield name, _assemble(owners[name], pieces, dtype, group)
            continue
        for piece in pieces:
            dist.send(piece.tensor.to("cpu").contiguous(), dst=0, group=group)
        yield name, torch.empty(0, dtype=dtype)


def full_shapes(conversion: WeightConversion, keep: ParameterFilter = is_trunk) -> dict[str, tuple[int, ...]]:
    """Return the full shape of every checkpoint tensor, sorted by name."""
    unsharded = WeightConversion(conversion.shape, ParallelLayout(), conversion.heads, conversion.adapted)
    return {
        name: source.slices[0].tensor_shape
        for name, source in sorted(unsharded.owned_tensors.items())
        if keep(source.parameter)
    }


def tensor_owners(
    conversions: Sequence[WeightConversion], keep: ParameterFilter = is_trunk
) -> dict[str, dict[int, TensorSource]]:
    """Map each checkpoint tensor, sorted by name, to the ranks that own slices of it."""
    owners: dict[str, dict[int, TensorSource]] = {}
    for rank, conversion in enumerate(conversions):
        for name, source in conversion.owned_tensors.items():
            if keep(source.parameter):
                owners.setdefault(name, {})[rank] = source
    return dict(sorted(owners.items()))


def _assemble(
    owners: dict[int, TensorSource],
    own: Sequence[WeightSlice],
    dtype: torch.dtype,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Assemble a full tensor on rank 0."""
    full: Tensor | None = None
    for owner, source in sorted(owners.items()):
        runs = merge_adjacent(source.slices)
        if len(owners) == 1 and owner == 0 and len(own) == 1:
            return own[0].tensor.to("cpu")
        if full is None:
            full = torch.empty(source.slices[0].tensor_shape, dtype=dtype)
        for index, run in enumerate(runs):
            size = (sum(part.size[0] for part in run), *run[0].size[1:])
            target = full[
                tuple(slice(start, start + count) for start, count in zip(run[0].start, size, strict=True))
            ]
            if owner == 0:
                target.copy_(own[index].tensor)
                continue
            piece = torch.empty(size, dtype=dtype)
            dist.recv(piece, src=owner, group=group)
            target.copy_(piece)
    assert full is not None
    return full


def _owned_slices(
    conversion: WeightConversion,
    name: str,
    source: TensorSource,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    scale: float,
) -> Iterator[WeightSlice]:
    parameter = parameters[source.parameter].detach()
    adapter = _local_adapter(conversion, name, source, parameters)
    for run in merge_adjacent(source.slices):
        pieces = [parameter[part.local_index] for part in run]
        piece = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if adapter is not None:
            piece = adapter.merge_into(piece, scale, transposed=False)
        yield WeightSlice(name, run[0].tensor_shape, run[0].start, piece.to(dtype or parameter.dtype))


def _local_adapter(
    conversion: WeightConversion, name: str, source: TensorSource, parameters: Mapping[str, Tensor]
) -> LowRankAdapter | None:
    """Return this rank's part of the layer's adapter, or None: it covers the same rows and columns."""
    layer = name.removesuffix(".weight")
    if conversion.adapted is None or layer not in conversion.adapted.layers or layer == name:
        return None
    stem = f"{source.parameter.removesuffix('.weight')}{ADAPTER_MARK}{layer.rpartition('.')[2]}"
    return LowRankAdapter(parameters[f"{stem}.lora_A"].detach(), parameters[f"{stem}.lora_B"].detach(), None)
