"""Verifies a part's bytes against the checksums of its manifest, with as many threads as the process computes
with.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import xxhash

from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.manifest import CorruptTransfer


def verify_checksums(snapshot: memoryview, tensors: Sequence[refit_pb2.TensorEntry], source: str) -> None:
    """Raise CorruptTransfer, naming every tensor of the part whose checksum differs."""

    def is_corrupt(index: int) -> bool:
        entry = tensors[index]
        data = snapshot[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        return bool(xxhash.xxh3_64_hexdigest(data) != entry.checksum)

    def corrupt_of(indices: Sequence[int]) -> list[int]:
        return [index for index in indices if is_corrupt(index)]

    shares = _balance([entry.size_bytes for entry in tensors], torch.get_num_threads())
    with ThreadPoolExecutor(len(shares), "verify") as threads:
        corrupt_indices = [index for indices in threads.map(corrupt_of, shares) for index in indices]
    if corrupt_indices:
        corrupt_names = [tensors[index].name for index in sorted(corrupt_indices)]
        names = ", ".join(corrupt_names[:5]) + (", ..." if len(corrupt_names) > 5 else "")
        raise CorruptTransfer(
            f"{len(corrupt_names)} of {len(tensors)} tensors from {source} have the wrong checksum: {names}"
        )


def _balance(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distribute the indices of these sizes among `count` threads evenly: largest first, each to the thread
    with the least.
    """
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = totals.index(min(totals))
        shares[least].append(i)
        totals[least] += sizes[i]
    return shares
