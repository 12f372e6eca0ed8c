"""The sender's deltas: a file of what changed between two snapshots of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kubealign.v1 import refit_pb2
from kubealign_services.refit.delta import encode
from kubealign_services.refit.manifest import DTYPES
from kubealign_services.refit.snapshot import SnapshotFile


def alike(one: Sequence[refit_pb2.TensorEntry], other: Sequence[refit_pb2.TensorEntry]) -> bool:
    """Whether two parts are of the same pieces in the same places, whatever their bytes are."""
    return [_place(entry) for entry in one] == [_place(entry) for entry in other]


def write_changes(
    target: SnapshotFile, old: SnapshotFile, new: SnapshotFile, tensors: Sequence[refit_pb2.TensorEntry]
) -> list[int]:
    """Replace the target's contents by the changes from old to new, piece after piece; their sizes. Empty
    when they would take no fewer bytes than the pieces themselves. tensors: of both snapshots, as far as
    `alike` tells.

    Raises OSError when there is no room."""
    sizes: list[int] = []
    offset, dense = 0, sum(entry.size_bytes for entry in tensors)

    def changes(entry: refit_pb2.TensorEntry) -> bytes:
        before = old.read(entry.offset_bytes, entry.size_bytes)
        after = new.read(entry.offset_bytes, entry.size_bytes)
        return encode(before, after, DTYPES[entry.dtype].itemsize)

    # As many threads as the process computes with; nothing else does meanwhile.
    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        for delta in threads.map(changes, tensors):
            target.put(delta, offset)
            sizes.append(len(delta))
            offset += len(delta)
    return sizes if offset < dense else []


def _place(entry: refit_pb2.TensorEntry) -> tuple[object, ...]:
    shapes = (tuple(entry.shape), tuple(entry.start), tuple(entry.whole_shape))
    return entry.name, entry.dtype, entry.offset_bytes, shapes
