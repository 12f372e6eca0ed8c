"""A rank's part of a layout-independent checkpoint: slices of the trained weights and their moments, under
the Hugging Face names with their ranges.

`shard-RANK-of-RANKS.safetensors` holds the tensors; a JSON file of the same name describes them, with the
digest of the tensor file and its own. Both files are synced to disk when `save_shard` returns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import CorruptCheckpoint
from kubealign_services.training.files.shard_files import adapter_identity, write_shard
from kubealign_services.training.megatron_backend.weights.checkpoint_shards import (
    FORMAT,
    STATE_FIELDS,
    ParameterState,
    RankShard,
    SavedSlice,
    read_shards,
    shard_files,
)
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion
from kubealign_services.training.megatron_backend.weights.mapping_slices import MappedSlice
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    full_shapes,
    is_any,
    merge_adjacent,
)


def save_shard(
    directory: Path,
    conversions: Sequence[WeightConversion],
    rank: int,
    states: Iterable[tuple[str, ParameterState]],
    updates: int,
    lora: Lora | None = None,
) -> list[str]:
    """Write this rank's two files into an existing folder.

    Returns their names. Raises OSError, naming the file that cannot be written.

    Args:
        conversions: Conversions of all ranks.
        states: State of each trained parameter of this rank, by megatron-core's names (iteration may be
            collective).
        updates: Optimiser steps done.
        lora: Settings of the adapter.
    """
    conversion = conversions[rank]
    owned = _owned_by_parameter(conversion)
    tensors: dict[str, Tensor] = {}
    pieces: list[dict[str, Any]] = []
    for parameter, state in states:
        for name, parts in owned.get(parameter, {}).items():
            for run in merge_adjacent(parts):
                piece = SavedSlice(name, run[0].tensor_shape, run[0].start, _run_size(run))
                pieces.append(asdict(piece))
                for kind in STATE_FIELDS:
                    tensor = getattr(state, kind)
                    tensors[piece.key(kind)] = torch.cat([tensor[part.local_index] for part in run]).cpu()
    tensors_file, description_file = shard_files(directory, rank, len(conversions))
    description = {
        "format": FORMAT,
        "rank": rank,
        "world_size": len(conversions),
        "layout": asdict(conversion.layout),
        "updates": updates,
        "adapter": adapter_identity(lora),
        "pieces": pieces,
    }
    return write_shard(tensors_file, tensors, description_file, description)


def load_shards(
    directory: Path,
    conversions: Sequence[WeightConversion],
    rank: int,
    parameters: Iterable[str],
    lora: Lora | None = None,
) -> tuple[dict[str, ParameterState], int]:
    """Read a checkpoint of any number of ranks in any layout.

    Returns (state of each trained parameter of this rank, on the CPU; optimiser steps done). A vocabulary's
    padding is 0. The RNG states are restored when number and layout of the ranks are unchanged. Nothing else
    is changed: the caller applies the states once every rank has them. Raises CorruptCheckpoint, naming the
    file.

    Args:
        parameters: megatron-core's names of the trained parameters.
    """
    conversion = conversions[rank]
    slices = {name: conversion.slices_of(name) for name in parameters}
    shards = read_shards(directory, lora)
    _check_tensor_shapes(shards, conversion)
    try:
        states = _assemble_states(directory, shards, conversion, slices)
        own_shard = next((shard for shard in shards if shard.layout == asdict(conversion.layout)), None)
        if own_shard is not None and len(shards) == len(conversions):
            _restore_rng(own_shard)
    finally:
        for shard in shards:
            shard.close()
    return states, shards[0].updates


def _owned_by_parameter(conversion: WeightConversion) -> dict[str, dict[str, tuple[MappedSlice, ...]]]:
    """Map each parameter of this rank to the checkpoint tensors of which it owns slices, and these slices."""
    result: dict[str, dict[str, tuple[MappedSlice, ...]]] = {}
    for name, source in conversion.owned_tensors.items():
        result.setdefault(source.parameter, {})[name] = source.slices
    return result


def _run_size(run: list[MappedSlice]) -> tuple[int, ...]:
    return (sum(part.size[0] for part in run), *run[0].size[1:])


def _check_tensor_shapes(shards: Sequence[RankShard], conversion: WeightConversion) -> None:
    """Check that every saved tensor is one of this model's, in its shape."""
    shapes = full_shapes(conversion, is_any)
    for shard in shards:
        unknown = sorted({piece.name for piece in shard.slices if shapes.get(piece.name) != piece.whole})
        if unknown:
            raise CorruptCheckpoint(
                f"{shard.description_file} is of another model: {', '.join(unknown[:5])} "
                f"differ{'s' if len(unknown) == 1 else ''} in name or shape"
            )


def _assemble_states(
    directory: Path,
    shards: Sequence[RankShard],
    conversion: WeightConversion,
    slices: Mapping[str, tuple[MappedSlice, ...]],
) -> dict[str, ParameterState]:
    by_name: dict[str, list[tuple[RankShard, SavedSlice]]] = {}
    for shard in shards:
        for piece in shard.slices:
            by_name.setdefault(piece.name, []).append((shard, piece))
    states = {}
    for parameter, parts in slices.items():
        state = ParameterState(*(torch.zeros(conversion.shapes[parameter]) for _ in STATE_FIELDS))
        for part in parts:
            covered = 0
            for shard, piece in by_name.get(part.name, ()):
                covered += _copy_overlap(shard, piece, part, state)
            if covered != _count_elements(part.size):
                raise CorruptCheckpoint(
                    f"{directory} lacks a part of {part.name}: of the range from {list(part.start)} of size "
                    f"{list(part.size)} its {len(shards)} shards hold {covered} of "
                    f"{_count_elements(part.size)} numbers"
                )
        states[parameter] = state
    return states


def _copy_overlap(shard: RankShard, piece: SavedSlice, part: MappedSlice, state: ParameterState) -> int:
    """Copy the overlap of a saved slice and a mapped slice. Returns the number of copied elements."""
    begin = [max(a, b) for a, b in zip(piece.start, part.start, strict=True)]
    end = [
        min(a + m, b + n) for a, m, b, n in zip(piece.start, piece.size, part.start, part.size, strict=True)
    ]
    size = [stop - start for start, stop in zip(begin, end, strict=True)]
    if min(size) <= 0:
        return 0
    inside = tuple(slice(a - s, a - s + n) for a, s, n in zip(begin, piece.start, size, strict=True))
    target = tuple(
        slice(at + a - s, at + a - s + n)
        for at, a, s, n in zip(part.local_start, begin, part.start, size, strict=True)
    )
    for kind in STATE_FIELDS:
        getattr(state, kind)[target] = shard.read(piece, kind, inside)
    return _count_elements(size)


def _count_elements(size: Iterable[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count


def _restore_rng(shard: RankShard) -> None:
    torch.set_rng_state(shard.tensor("rng.cpu"))
    if torch.cuda.is_available() and shard.contains("rng.cuda"):
        torch.cuda.set_rng_state(shard.tensor("rng.cuda"))
