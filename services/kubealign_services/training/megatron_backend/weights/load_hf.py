"""Loads a Hugging Face folder into this rank's parameters: reads only the ranges that the rank needs."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kubealign_services.runtime.model_cache import local_copy
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion
from kubealign_services.training.megatron_backend.weights.mapping_slices import MappedSlice
from kubealign_services.training.megatron_backend.weights.rank_slices import is_weight

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_TRUNK = "model."


def load_weights(
    folder: Path,
    conversion: WeightConversion,
    parameters: Mapping[str, Tensor],
    drawn: frozenset[str] = frozenset(),
) -> None:
    """Fill this rank's parameters in place, in their dtype. A vocabulary's padding becomes 0.

    Raises ValueError, naming the tensors, when the folder lacks some or has them in other shapes, or when
    megatron-core's model does not match the weight mapping.

    Args:
        drawn: Parameters that are not read, such as a new head; adapters never are.
    """
    own = {name: tensor for name, tensor in parameters.items() if is_weight(name)}
    check_parameters(conversion, own)
    with ExitStack() as stack, torch.no_grad():
        reader = _CheckpointReader(folder, stack)
        names = [name for name in own if name not in drawn]
        reader.check([part for name in names for part in conversion.slices_of(name)])
        for name in names:
            target = own[name]
            parts = conversion.slices_of(name)
            if sum(part.size[0] for part in parts) < len(target):
                target.zero_()
            for part in parts:
                target[part.local_index].copy_(reader.read(part))


def read_tensor(folder: Path, name: str) -> Tensor:
    """Return a whole tensor of a folder's model in the file's dtype. Raises ValueError when it is missing."""
    copy = local_copy(folder)
    file = _read_file_index(copy).get(name)
    if file is None:
        raise ValueError(f"{folder} lacks weights of its model: {name}")
    with _open_safetensors(copy / file) as tensors:
        weight: Tensor = tensors.get_tensor(name)
    return weight


def check_parameters(conversion: WeightConversion, parameters: Mapping[str, Tensor]) -> None:
    """Raise ValueError when names or shapes differ from the weight mapping."""
    for name, tensor in parameters.items():
        conversion.slices_of(name)
        if tuple(tensor.shape) != conversion.shapes[name]:
            raise ValueError(
                f"megatron-core's parameter {name} has shape {tuple(tensor.shape)}; the weight mapping "
                f"says {conversion.shapes[name]}"
            )
    missing = sorted(name for name in conversion.shapes if is_weight(name) and name not in parameters)
    if missing:
        raise ValueError(
            f"megatron-core's model lacks parameters of the weight mapping: {', '.join(missing)}"
        )


class _CheckpointReader:
    """Reads ranges of the tensors of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = local_copy(folder)
        self._stack = stack
        self._open: dict[str, Any] = {}
        self._files = _read_file_index(self._folder)

    def check(self, parts: list[MappedSlice]) -> None:
        """Raise ValueError unless every slice is of an existing tensor of the expected shape."""
        missing = sorted({part.name for part in parts if self._stored_name(part.name) not in self._files})
        if missing:
            raise ValueError(
                f"{self._folder} lacks weights of its model: {', '.join(missing[:5])}"
                f"{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}"
            )
        for name, expected_shape in {part.name: part.tensor_shape for part in parts}.items():
            stored_shape = tuple(self._slice(name).get_shape())
            if stored_shape != expected_shape:
                raise ValueError(
                    f"{self._folder / self._files[self._stored_name(name)]} holds {name} in shape "
                    f"{stored_shape}; config.json implies {expected_shape}"
                )

    def read(self, part: MappedSlice) -> Tensor:
        """Return a slice, [part.size], in the file's dtype."""
        ranges = tuple(slice(start, start + size) for start, size in zip(part.start, part.size, strict=True))
        piece: Tensor = self._slice(part.name)[ranges]
        if not piece.is_floating_point():
            raise ValueError(
                f"{self._folder}: {part.name} holds {piece.dtype}; the Megatron backend reads floating-point "
                "weights"
            )
        return piece

    def _stored_name(self, name: str) -> str:
        """Return the stored name of a tensor: a bare trunk's checkpoint omits the prefix."""
        bare = name.removeprefix(_TRUNK)
        return bare if name not in self._files and bare in self._files else name

    def _slice(self, name: str) -> Any:
        stored = self._stored_name(name)
        file = self._files[stored]
        if file not in self._open:
            self._open[file] = self._stack.enter_context(_open_safetensors(self._folder / file))
        return self._open[file].get_slice(stored)


def _read_file_index(folder: Path) -> dict[str, str]:
    """Map each tensor's name to the name of its file."""
    index = folder / _INDEX
    if index.is_file():
        try:
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{index} is not a weight index: {error!r}") from error
        return files
    if not (folder / _SINGLE).is_file():
        raise ValueError(
            f"{folder} holds neither {_SINGLE} nor {_INDEX}; the Megatron backend reads safetensors only"
        )
    with _open_safetensors(folder / _SINGLE) as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
