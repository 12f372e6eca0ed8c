"""The sender's deltas: a file of what changed between two snapshots of its own."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kubealign.v1 import refit_pb2
from kubealign_services.refit.delta import encode
from kubealign_services.refit.manifest import DTYPES
from kubealign_services.refit.snapshot import SnapshotFile

# Deltas of more than half of the dense bytes are not worth their making: so many bytes of a part tell.
_TELLING_BYTES = 64 << 20


def alike(one: Sequence[refit_pb2.TensorEntry], other: Sequence[refit_pb2.TensorEntry]) -> bool:
    """Whether two parts are of the same pieces in the same places, whatever their bytes are."""
    return [_place(entry) for entry in one] == [_place(entry) for entry in other]


def write_changes(
    target: SnapshotFile, old: SnapshotFile, new: SnapshotFile, tensors: Sequence[refit_pb2.TensorEntry]
) -> list[int]:
    """Replace the target's contents by the changes from old to new, piece after piece; their sizes. Empty
    when they would take no fewer bytes than the pieces themselves, or of a large part more than half of them,
    which is found out before all are made. tensors: of both snapshots, as far as `alike` tells.

    Raises OSError when there is no room."""
    sizes: list[int] = []
    seen = 0
    too_much = threading.Event()

    def changes(entry: refit_pb2.TensorEntry) -> bytes:
        if too_much.is_set():
            return b""
        return encode(_bytes_of(old, entry), _bytes_of(new, entry), DTYPES[entry.dtype].itemsize)

    # As many threads as the process computes with; nothing else does meanwhile.
    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        offset = 0
        for entry, delta in zip(tensors, threads.map(changes, tensors), strict=True):
            if too_much.is_set():
                continue
            target.put(delta, offset)
            sizes.append(len(delta))
            offset += len(delta)
            seen += entry.size_bytes
            if seen >= _TELLING_BYTES and 2 * offset > seen:
                too_much.set()
    return [] if too_much.is_set() or offset >= seen else sizes


def _bytes_of(file: SnapshotFile, entry: refit_pb2.TensorEntry) -> memoryview | bytes:
    """Of a piece: where the file is mapped, without a copy."""
    mapped = file.mapped(entry.offset_bytes, entry.size_bytes)
    return file.read(entry.offset_bytes, entry.size_bytes) if mapped is None else mapped.data


def _place(entry: refit_pb2.TensorEntry) -> tuple[object, ...]:
    shapes = (tuple(entry.shape), tuple(entry.start), tuple(entry.whole_shape))
    return entry.name, entry.dtype, entry.offset_bytes, shapes
