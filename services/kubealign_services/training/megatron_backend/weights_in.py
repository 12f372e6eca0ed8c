"""From a Hugging Face folder to this rank's parameters: only what the rank needs is read."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kubealign_services.training.megatron_backend.conversion import Conversion
from kubealign_services.training.megatron_backend.slices import is_weight
from kubealign_services.training.megatron_backend.table_parts import Part

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_TRUNK = "model."


def load_weights(
    folder: Path,
    conversion: Conversion,
    parameters: Mapping[str, Tensor],
    drawn: frozenset[str] = frozenset(),
) -> None:
    """Fill this rank's parameters in place, in their dtype. A vocabulary's padding becomes 0. drawn: those
    that are not read, such as a fresh head; adapters never are.

    Raises ValueError, naming the tensors, where the folder lacks some or has them in other shapes, or
    megatron-core's model is not the one of the table.
    """
    own = {name: tensor for name, tensor in parameters.items() if is_weight(name)}
    check_parameters(conversion, own)
    with ExitStack() as stack, torch.no_grad():
        reader = _Reader(folder, stack)
        wanted = [name for name in own if name not in drawn]
        reader.check([part for name in wanted for part in conversion.parts(name)])
        for name in wanted:
            target = own[name]
            parts = conversion.parts(name)
            if sum(part.size[0] for part in parts) < len(target):
                target.zero_()
            for part in parts:
                target[part.inside].copy_(reader.read(part))


def check_parameters(conversion: Conversion, parameters: Mapping[str, Tensor]) -> None:
    """Raises ValueError where the names or shapes are not the table's."""
    for name, tensor in parameters.items():
        conversion.parts(name)
        if tuple(tensor.shape) != conversion.shapes[name]:
            raise ValueError(
                f"megatron-core's parameter {name} has shape {tuple(tensor.shape)}; the table of weights "
                f"says {conversion.shapes[name]}"
            )
    lost = sorted(name for name in conversion.shapes if is_weight(name) and name not in parameters)
    if lost:
        raise ValueError(f"megatron-core's model lacks parameters of the table of weights: {', '.join(lost)}")


class _Reader:
    """Ranges of the tensors of a folder's safetensors files."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._open: dict[str, Any] = {}
        self._files = _files_of(folder)

    def check(self, parts: list[Part]) -> None:
        """Raises ValueError unless every part is of a tensor that is there, in its shape."""
        lost = sorted({part.name for part in parts if self._name(part.name) not in self._files})
        if lost:
            raise ValueError(
                f"{self._folder} lacks weights of its model: {', '.join(lost[:5])}"
                f"{f' and {len(lost) - 5} more' if len(lost) > 5 else ''}"
            )
        for name, whole in {part.name: part.whole for part in parts}.items():
            found = tuple(self._slice(name).get_shape())
            if found != whole:
                raise ValueError(
                    f"{self._folder / self._files[self._name(name)]} holds {name} in shape {found}; "
                    f"config.json makes it {whole}"
                )

    def read(self, part: Part) -> Tensor:
        """[part.size], in the file's dtype."""
        inside = tuple(slice(start, start + size) for start, size in zip(part.start, part.size, strict=True))
        piece: Tensor = self._slice(part.name)[inside]
        if not piece.is_floating_point():
            raise ValueError(
                f"{self._folder}: {part.name} holds {piece.dtype}; the Megatron backend reads floating-point "
                "weights"
            )
        return piece

    def _name(self, name: str) -> str:
        """A bare trunk's checkpoint names its tensors without the prefix."""
        bare = name.removeprefix(_TRUNK)
        return bare if name not in self._files and bare in self._files else name

    def _slice(self, name: str) -> Any:
        stored = self._name(name)
        file = self._files[stored]
        if file not in self._open:
            self._open[file] = self._stack.enter_context(_opened(self._folder / file))
        return self._open[file].get_slice(stored)


def _files_of(folder: Path) -> dict[str, str]:
    """Tensor's name -> name of the file that holds it."""
    index = folder / _INDEX
    if index.is_file():
        try:
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{index} is no index of weights: {error!r}") from error
        return files
    if not (folder / _SINGLE).is_file():
        raise ValueError(
            f"{folder} holds neither {_SINGLE} nor {_INDEX}; the Megatron backend reads safetensors alone"
        )
    with _opened(folder / _SINGLE) as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
