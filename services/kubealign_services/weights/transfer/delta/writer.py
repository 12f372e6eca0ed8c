"""Sender side of delta encoding: writes the changes between two snapshots to a file."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.manifest import DTYPES
from kubealign_services.weights.send.snapshot_file import SnapshotFile
from kubealign_services.weights.transfer.delta.codec import encode_delta

# Deltas of more than half of the dense bytes do not pay off; decided after this many bytes of a part.
_DECISION_BYTES = 64 << 20


def have_same_layout(first: Sequence[refit_pb2.TensorEntry], second: Sequence[refit_pb2.TensorEntry]) -> bool:
    """Return True when two parts have the same pieces at the same offsets, whatever their bytes."""
    return [_layout_key(entry) for entry in first] == [_layout_key(entry) for entry in second]


def write_deltas(
    target: SnapshotFile, old: SnapshotFile, new: SnapshotFile, tensors: Sequence[refit_pb2.TensorEntry]
) -> list[int]:
    """Replace the contents of `target` by the deltas from `old` to `new`, piece after piece; return their
    sizes.

    Returns an empty list when the deltas are not smaller than the pieces, or, for a large part, larger
    than half of them, which is detected early.

    Args:
        tensors: Entries of both snapshots, which must have the same layout.

    Raises:
        OSError: The disk is full.
    """
    sizes: list[int] = []
    seen = 0
    not_worthwhile = threading.Event()

    def encode_entry(entry: refit_pb2.TensorEntry) -> bytes:
        if not_worthwhile.is_set():
            return b""
        return encode_delta(_piece_bytes(old, entry), _piece_bytes(new, entry), DTYPES[entry.dtype].itemsize)

    # Uses all compute threads: the process does not compute meanwhile.
    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        offset = 0
        for entry, delta in zip(tensors, threads.map(encode_entry, tensors), strict=True):
            if not_worthwhile.is_set():
                continue
            target.write_at(delta, offset)
            sizes.append(len(delta))
            offset += len(delta)
            seen += entry.size_bytes
            if seen >= _DECISION_BYTES and 2 * offset > seen:
                not_worthwhile.set()
    return [] if not_worthwhile.is_set() or offset >= seen else sizes


def _piece_bytes(file: SnapshotFile, entry: refit_pb2.TensorEntry) -> memoryview | bytes:
    """Return the bytes of a piece, without a copy where the file is mapped."""
    mapped = file.mapped_view(entry.offset_bytes, entry.size_bytes)
    return file.read(entry.offset_bytes, entry.size_bytes) if mapped is None else mapped.data


def _layout_key(entry: refit_pb2.TensorEntry) -> tuple[object, ...]:
    shapes = (tuple(entry.shape), tuple(entry.start), tuple(entry.whole_shape))
    return entry.name, entry.dtype, entry.offset_bytes, shapes
