"""Disk cache of frozen models' scores, so that each sequence is scored once for all epochs and restarts.

The key is the content of a sequence (tokens and loss mask), not its position in the data: equal rows are
scored once, and the scores of other tokens are never returned. Each driver fence writes a file of its own
and reads all files, so no two drivers write the same file.

A record holds 16 bytes of the sequence's digest, 16 of the columns' digest, 4 of their length
(little-endian), and the columns as safetensors. A truncated or damaged record counts as missing.
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

_RECORD_HEADER = struct.Struct("<16s16sI")

log = logging.getLogger(__name__)


class _RecordLocation(NamedTuple):
    path: Path
    offset: int
    length: int
    digest: str


class FrozenScoreCache:
    """Disk cache of one frozen model's scores.

    `name`: of the model. Only the records' locations are held in memory.
    """

    def __init__(self, folder: Path, name: str, fence: int) -> None:
        self._path = folder / f"{name}-{fence}.cache"
        self._locations: dict[bytes, _RecordLocation] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{name}-*.cache")):
            self._index_file(path)

    def __len__(self) -> int:
        """Return the number of cached sequences."""
        return len(self._locations)

    @property
    def size_bytes(self) -> int:
        """Size of all cached columns in bytes."""
        return sum(location.length for location in self._locations.values())

    def find(self, batch: Batch) -> list[dict[str, Tensor] | None]:
        """Return the cached token columns of each sequence, one entry per token; None: not cached."""
        return [self._read_record(key) for key in _content_keys(batch)]

    def add(self, batch: Batch, columns: Mapping[str, Tensor]) -> None:
        """Append the token columns of all the batch's sequences."""
        records = bytearray()
        bounds = batch.cu_seqlens.tolist()
        start = self._path.stat().st_size if self._path.exists() else 0
        added: dict[bytes, _RecordLocation] = {}
        for index, key in enumerate(_content_keys(batch)):
            part = {name: column[bounds[index] : bounds[index + 1]] for name, column in columns.items()}
            blob, digest = encode_columns(part)
            records += _RECORD_HEADER.pack(key, bytes.fromhex(digest), len(blob))
            added[key] = _RecordLocation(self._path, start + len(records), len(blob), digest)
            records += blob
        with self._path.open("ab") as file:
            file.write(records)
        self._locations |= added

    def _read_record(self, key: bytes) -> dict[str, Tensor] | None:
        """Read and verify one record; None if it is missing or damaged."""
        location = self._locations.get(key)
        if location is None:
            return None
        try:
            with location.path.open("rb") as file:
                blob = os.pread(file.fileno(), location.length, location.offset)
                return decode_columns(blob, location.digest)
        except (OSError, CorruptBatch) as error:
            log.warning("a cached record is damaged", extra={"file": str(location.path), "error": str(error)})
            del self._locations[key]
            return None

    def _index_file(self, path: Path) -> None:
        """Add the locations of a file's complete records."""
        size = path.stat().st_size
        with path.open("rb") as file:
            while len(head := file.read(_RECORD_HEADER.size)) == _RECORD_HEADER.size:
                key, digest, length = _RECORD_HEADER.unpack(head)
                offset = file.tell()
                if offset + length > size:
                    return
                self._locations[key] = _RecordLocation(path, offset, length, digest.hex())
                file.seek(length, os.SEEK_CUR)


def select_unique(batch: Batch, indices: Sequence[int]) -> list[int]:
    """Return those of the sequences `indices` whose content no earlier one has."""
    keys = _content_keys(batch)
    seen: dict[bytes, int] = {}
    for index in indices:
        seen.setdefault(keys[index], index)
    return list(seen.values())


def _content_keys(batch: Batch) -> list[bytes]:
    """Return a 16-byte key for each sequence, from its tokens and loss mask."""
    tokens, mask = batch.tokens.to(torch.int32).numpy(), batch.token("loss_mask").to(torch.uint8).numpy()
    bounds = batch.cu_seqlens.tolist()
    return [
        xxhash.xxh3_128_digest(tokens[start:end].tobytes() + mask[start:end].tobytes())
        for start, end in pairwise(bounds)
    ]
