"""What frozen models have said of sequences, kept in a file: asked once, for all epochs and restarts.

A sequence is known by its content (tokens and loss mask), not by its place in the data: rows that are alike
are asked about once, and what belongs to other tokens is never found. Each driver's fence writes a file of
its own and reads all of them, so that two never write the same one.

A record: 16 bytes of the sequence's digest, 16 of the columns' digest, 4 of their length (little-endian), and
the columns as safetensors. A record that was cut short, or that is not what was written, is not there.
"""

import logging
import os
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import xxhash
from torch import Tensor

from kubealign_services.batch.codec import CorruptBatch, decode_columns, encode_columns
from kubealign_services.batch.packed import Batch

_HEAD = struct.Struct("<16s16sI")

log = logging.getLogger(__name__)


class _Place(NamedTuple):
    path: Path
    offset: int
    length: int
    digest: str


class FrozenCache:
    """`name`: of the frozen model. Only the records' places are held in memory."""

    def __init__(self, folder: Path, name: str, fence: int) -> None:
        self._path = folder / f"{name}-{fence}.cache"
        self._places: dict[bytes, _Place] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{name}-*.cache")):
            self._index(path)

    def __len__(self) -> int:
        """Sequences that something is known of."""
        return len(self._places)

    @property
    def size_bytes(self) -> int:
        """Of all that is known."""
        return sum(place.length for place in self._places.values())

    def find(self, batch: Batch) -> list[dict[str, Tensor] | None]:
        """For each sequence its token columns, one entry for each of its tokens; None: not known."""
        return [self._read(key) for key in _keys(batch)]

    def add(self, batch: Batch, columns: Mapping[str, Tensor]) -> None:
        """Keep token columns of all of the batch's sequences."""
        records = bytearray()
        bounds = batch.cu_seqlens.tolist()
        start = self._path.stat().st_size if self._path.exists() else 0
        added: dict[bytes, _Place] = {}
        for index, key in enumerate(_keys(batch)):
            part = {name: column[bounds[index] : bounds[index + 1]] for name, column in columns.items()}
            blob, digest = encode_columns(part)
            records += _HEAD.pack(key, bytes.fromhex(digest), len(blob))
            added[key] = _Place(self._path, start + len(records), len(blob), digest)
            records += blob
        with self._path.open("ab") as file:
            file.write(records)
        self._places |= added

    def _read(self, key: bytes) -> dict[str, Tensor] | None:
        place = self._places.get(key)
        if place is None:
            return None
        try:
            with place.path.open("rb") as file:
                return decode_columns(os.pread(file.fileno(), place.length, place.offset), place.digest)
        except (OSError, CorruptBatch) as error:
            log.warning("a kept record is no good", extra={"file": str(place.path), "error": str(error)})
            del self._places[key]
            return None

    def _index(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                key, digest, length = _HEAD.unpack(head)
                offset = file.tell()
                if offset + length > size:
                    return
                self._places[key] = _Place(path, offset, length, digest.hex())
                file.seek(length, os.SEEK_CUR)


def first_of_each(batch: Batch, among: Sequence[int]) -> list[int]:
    """Of these sequences, those whose content no earlier one has."""
    keys = _keys(batch)
    seen: dict[bytes, int] = {}
    for index in among:
        seen.setdefault(keys[index], index)
    return list(seen.values())


def _keys(batch: Batch) -> list[bytes]:
    """16 bytes for each sequence, from its tokens and its loss mask."""
    tokens, mask = batch.tokens.to(torch.int32).numpy(), batch.token("loss_mask").to(torch.uint8).numpy()
    bounds = batch.cu_seqlens.tolist()
    return [
        xxhash.xxh3_128_digest(tokens[start:end].tobytes() + mask[start:end].tobytes())
        for start, end in pairwise(bounds)
    ]
