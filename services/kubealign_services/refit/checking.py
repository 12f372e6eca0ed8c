"""Checking a part's bytes against its manifest, with as many threads as the process computes with."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import xxhash

from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import CorruptTransfer


def verify(snapshot: memoryview, tensors: Sequence[refit_pb2.TensorEntry], source: str) -> None:
    """Raises CorruptTransfer naming every tensor of the part's bytes whose checksum differs."""

    def is_corrupt(place: int) -> bool:
        entry = tensors[place]
        data = snapshot[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        return bool(xxhash.xxh3_64_hexdigest(data) != entry.checksum)

    def corrupt_of(places: Sequence[int]) -> list[int]:
        return [place for place in places if is_corrupt(place)]

    shares = _shares([entry.size_bytes for entry in tensors], torch.get_num_threads())
    with ThreadPoolExecutor(len(shares), "verify") as threads:
        found = [place for places in threads.map(corrupt_of, shares) for place in places]
    if found:
        corrupt = [tensors[place].name for place in sorted(found)]
        names = ", ".join(corrupt[:5]) + (", ..." if len(corrupt) > 5 else "")
        raise CorruptTransfer(
            f"{len(corrupt)} of {len(tensors)} tensors from {source} have the wrong checksum: {names}"
        )


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The places of these sizes, dealt out to so many so that all get about as much: the largest first, each
    to whoever has the least."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        least = totals.index(min(totals))
        shares[least].append(place)
        totals[least] += sizes[place]
    return shares
