"""Checkpoint files of all ranks: reads and checks them, and reads their tensors by range."""

import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import CorruptCheckpoint
from kubealign_services.training.files.shard_files import (
    adapter_identity,
    check_adapter,
    file_digest,
    read_shard_description,
)

#: Format of the description; the torch backend's formats are numbers.
FORMAT = "megatron-1"

#: Saved tensors of each parameter: the fields of `ParameterState`.
STATE_FIELDS = ("master", "exp_avg", "exp_avg_sq")

_NAME = re.compile(r"^shard-(\d+)-of-(\d+)\.json$")


@dataclass(frozen=True)
class ParameterState:
    """State of one of this rank's parameters, in full, fp32 in its shape: the master weight, and the moving
    averages of its gradient and of the gradient's square.
    """

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


@dataclass(frozen=True)
class SavedSlice:
    """A rectangle of a checkpoint tensor, saved in a shard.

    Attributes:
        whole: Shape of the full tensor.
    """

    name: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]

    def key(self, kind: str) -> str:
        """Return the name of one of its tensors in the file."""
        return f"{kind}.{self.name}@{','.join(map(str, self.start))}"


@dataclass
class RankShard:
    """The files of one rank. The tensor file is checked and opened when first read."""

    description_file: Path
    tensors_file: Path
    description: dict[str, Any]
    slices: list[SavedSlice]
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _file: Any = field(default=None, repr=False)

    @property
    def updates(self) -> int:
        """Number of optimiser steps done."""
        return int(self.description["updates"])

    @property
    def layout(self) -> dict[str, int]:
        """Fields of the `ParallelLayout` of the rank that wrote the shard."""
        layout: dict[str, int] = self.description["layout"]
        return layout

    def read(self, piece: SavedSlice, kind: str, inside: tuple[slice, ...]) -> Tensor:
        """Read a range of one tensor of a slice. Raises CorruptCheckpoint."""
        stored = self._slice(piece.key(kind))
        if tuple(stored.get_shape()) != piece.size:
            raise CorruptCheckpoint(
                f"{self.tensors_file} holds {piece.key(kind)} in shape {tuple(stored.get_shape())}; "
                f"{self.description_file.name} says {piece.size}"
            )
        read: Tensor = stored[inside]
        return read

    def tensor(self, key: str) -> Tensor:
        """Read a full tensor. Raises CorruptCheckpoint."""
        read: Tensor = self._slice(key)[:]
        return read

    def contains(self, key: str) -> bool:
        """Return True when the file contains the tensor."""
        return key in set(self._open().keys())

    def close(self) -> None:
        """Close the file."""
        self._file = None
        self._stack.close()

    def _slice(self, key: str) -> Any:
        if not self.contains(key):
            raise CorruptCheckpoint(f"{self.tensors_file} lacks {key}")
        return self._open().get_slice(key)

    def _open(self) -> Any:
        if self._file is None:
            try:
                if file_digest(self.tensors_file) != self.description["tensors_digest"]:
                    raise CorruptCheckpoint(
                        f"{self.tensors_file} is not as it was written: its digest differs"
                    )
                file: Any = safe_open(self.tensors_file, framework="pt", device="cpu")
                self._file = self._stack.enter_context(file)
            except (OSError, SafetensorError) as error:
                raise CorruptCheckpoint(f"{self.tensors_file} cannot be read: {error}") from error
        return self._file


def shard_files(directory: Path, rank: int, world_size: int) -> tuple[Path, Path]:
    """Return the paths of the tensor file and its description."""
    stem = f"shard-{rank:05d}-of-{world_size:05d}"
    return directory / f"{stem}.safetensors", directory / f"{stem}.json"


def read_shards(directory: Path, lora: Lora | None) -> list[RankShard]:
    """Read the descriptions of all ranks' shards, by rank.

    Raises CorruptCheckpoint when one is missing, altered or of another checkpoint.
    """
    sizes = {int(matched[2]) for matched in map(_NAME.match, _file_names(directory)) if matched}
    if len(sizes) != 1:
        summary = "no shards" if not sizes else f"shards of {' and '.join(map(str, sorted(sizes)))} ranks"
        raise CorruptCheckpoint(
            f"{directory} holds {summary}; a checkpoint has the shards of one set of ranks"
        )
    world_size = sizes.pop()
    shards = [_read_shard(*shard_files(directory, rank, world_size), lora) for rank in range(world_size)]
    for shard in shards:
        if shard.updates != shards[0].updates:
            raise CorruptCheckpoint(
                f"{shard.description_file} is of optimiser step {shard.updates}, "
                f"{shards[0].description_file.name} of {shards[0].updates}"
            )
    return shards


def _file_names(directory: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return [path.name for path in directory.iterdir()]
    return []


def _read_shard(tensors_file: Path, path: Path, lora: Lora | None) -> RankShard:
    description = read_shard_description(path)
    if description["format"] != FORMAT:
        raise CorruptCheckpoint(
            f"{path} has format {description['format']}; the Megatron backend reads {FORMAT} "
            "(a checkpoint of the torch backend is read by that alone)"
        )
    check_adapter(path, description["adapter"], adapter_identity(lora))
    if not tensors_file.is_file():
        raise CorruptCheckpoint(f"{tensors_file} does not exist")
    pieces = [
        SavedSlice(piece["name"], *(tuple(piece[key]) for key in ("whole", "start", "size")))
        for piece in description["pieces"]
    ]
    return RankShard(path, tensors_file, description, pieces)
