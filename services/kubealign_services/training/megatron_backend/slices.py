"""This rank's parameters as pieces of the checkpoint, and pieces of all ranks gathered into whole tensors.

local_slices(conversion, parameters, dtype)     # what refit sends: each element of one rank only
gathered(conversions, rank, parameters, dtype)  # whole tensors, one after the other, on rank 0
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.adapters.low_rank import LowRank
from kubealign_services.training.megatron_backend.conversion import ADAPTER, Conversion, Source
from kubealign_services.training.megatron_backend.layout import Layout
from kubealign_services.training.megatron_backend.table_parts import Part
from kubealign_services.training.slices import WeightSlice

#: Whether a tensor of the checkpoint is wanted, by the parameter it comes from.
Wanted = Callable[[str], bool]


def is_weight(parameter: str) -> bool:
    """Wanted: all but adapters."""
    return ADAPTER not in parameter


def is_adapter(parameter: str) -> bool:
    """Wanted: adapters alone."""
    return ADAPTER in parameter


def is_any(parameter: str) -> bool:
    """Wanted: all."""
    return bool(parameter)


def is_trunk(parameter: str) -> bool:
    """Wanted: all but adapters and the head of values or scores, as the torch backend's snapshot."""
    return is_weight(parameter) and parameter != "score.weight"


def joined(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts of one tensor, in order, in runs that follow each other along the first dimension."""
    runs: list[list[Part]] = []
    for part in parts:
        before = runs[-1][-1] if runs else None
        if (
            before is not None
            and before.start[0] + before.size[0] == part.start[0]
            and before.start[1:] == part.start[1:]
            and before.size[1:] == part.size[1:]
        ):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def local_slices(
    conversion: Conversion,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None = None,
    wanted: Wanted = is_trunk,
    scale: float = 1.0,
) -> Iterator[WeightSlice]:
    """What this rank owns of the checkpoint: over all ranks each element exactly once, ties once, padding
    stripped. parameters: this rank's, by megatron-core's names. dtype: of the slices; None: as they are.
    scale: alpha / rank of the adapters, which are merged into the layers that have one.

    A slice shares the parameter's memory where it is one rectangle of it in the same dtype.
    """
    for name, source in conversion.owned.items():
        if wanted(source.parameter):
            yield from _slices(conversion, name, source, parameters, dtype, scale)


def gathered(
    conversions: Sequence[Conversion],
    rank: int,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype,
    wanted: Wanted = is_trunk,
    scale: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """(checkpoint's name, CPU tensor of dtype) of every tensor, whole; collective. On ranks other than 0 the
    tensors are empty. conversions: of all ranks. group: gloo, over all ranks; None: the default one.

    Rank 0 holds one whole tensor at a time: the others send their pieces as it asks for them.
    """
    conversion = conversions[rank]
    owners = whole_tensors(conversions, wanted) if rank == 0 else {}
    for name in whole_shapes(conversion, wanted):
        pieces: list[WeightSlice] = []
        if name in conversion.owned:
            pieces.extend(_slices(conversion, name, conversion.owned[name], parameters, dtype, scale))
        if rank == 0:
            yield name, _assembled(owners[name], pieces, dtype, group)
            continue
        for piece in pieces:
            dist.send(piece.tensor.to("cpu").contiguous(), dst=0, group=group)
        yield name, torch.empty(0, dtype=dtype)


def whole_shapes(conversion: Conversion, wanted: Wanted = is_trunk) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint that one rank's conversion is of, sorted by name."""
    alone = Conversion(conversion.shape, Layout(), conversion.heads, conversion.adapted)
    return {
        name: source.parts[0].whole
        for name, source in sorted(alone.owned.items())
        if wanted(source.parameter)
    }


def whole_tensors(
    conversions: Sequence[Conversion], wanted: Wanted = is_trunk
) -> dict[str, dict[int, Source]]:
    """Each tensor of the checkpoint, sorted by name -> the ranks that own pieces of it."""
    found: dict[str, dict[int, Source]] = {}
    for rank, conversion in enumerate(conversions):
        for name, source in conversion.owned.items():
            if wanted(source.parameter):
                found.setdefault(name, {})[rank] = source
    return dict(sorted(found.items()))


def _assembled(
    owners: dict[int, Source],
    own: Sequence[WeightSlice],
    dtype: torch.dtype,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """On rank 0."""
    whole: Tensor | None = None
    for owner, source in sorted(owners.items()):
        runs = joined(source.parts)
        if len(owners) == 1 and owner == 0 and len(own) == 1:
            return own[0].tensor.to("cpu")
        if whole is None:
            whole = torch.empty(source.parts[0].whole, dtype=dtype)
        for index, run in enumerate(runs):
            size = (sum(part.size[0] for part in run), *run[0].size[1:])
            target = whole[
                tuple(slice(start, start + count) for start, count in zip(run[0].start, size, strict=True))
            ]
            if owner == 0:
                target.copy_(own[index].tensor)
                continue
            piece = torch.empty(size, dtype=dtype)
            dist.recv(piece, src=owner, group=group)
            target.copy_(piece)
    assert whole is not None
    return whole


def _slices(
    conversion: Conversion,
    name: str,
    source: Source,
    parameters: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    scale: float,
) -> Iterator[WeightSlice]:
    parameter = parameters[source.parameter].detach()
    adapter = _adapter(conversion, name, source, parameters)
    for run in joined(source.parts):
        pieces = [parameter[part.inside] for part in run]
        piece = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if adapter is not None:
            piece = adapter.merged(piece, scale, transposed=False)
        yield WeightSlice(name, run[0].whole, run[0].start, piece.to(dtype or parameter.dtype))


def _adapter(
    conversion: Conversion, name: str, source: Source, parameters: Mapping[str, Tensor]
) -> LowRank | None:
    """This rank's part of the layer's adapter, where it has one: it stands for the same rows and columns."""
    layer = name.removesuffix(".weight")
    if conversion.adapted is None or layer not in conversion.adapted.layers or layer == name:
        return None
    stem = f"{source.parameter.removesuffix('.weight')}{ADAPTER}{layer.rpartition('.')[2]}"
    return LowRank(parameters[f"{stem}.lora_A"].detach(), parameters[f"{stem}.lora_B"].detach(), None)
