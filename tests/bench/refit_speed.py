"""Refit over shared memory against one memcpy of the same bytes in the same run."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kubealign.spec.rollout import Transport
from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import piece_view, verify
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.refit.shared_memory import MappedSnapshot

_SHARED_MEMORY = Path("/dev/shm")


def measure(size_bytes: int = 256 << 20, tensors: int = 200, repeats: int = 5) -> dict[str, float]:
    """Best seconds of `repeats`, in fp32 weights of about `size_bytes`: memcpy; publish (copy in, checksum);
    verify (map, checksum); copy (out of the map). Plus total/memcpy, a ratio."""
    weights = [(f"layer.{index}", torch.randn(size_bytes // tensors // 4)) for index in range(tensors)]
    target = {name: torch.empty_like(weight) for name, weight in weights}

    def copy_into_target(source: list[tuple[str, Tensor]]) -> None:
        for name, weight in source:
            target[name].copy_(weight)

    best: dict[str, float] = {}

    def timed(name: str, action: Callable[[], None]) -> None:
        begun = time.perf_counter()
        action()
        best[name] = min(best.get(name, float("inf")), time.perf_counter() - begun)

    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        publisher = WeightsPublisher(Path(folder), None, Transport.SHARED_MEMORY)
        for version in range(repeats + 2):
            timed("memcpy", lambda: copy_into_target(weights))
            begun = time.perf_counter()
            announcement = publisher.publish(
                fence=1, version=version, tensors=iter(weights), canary=refit_pb2.Canary()
            )
            if version >= 2:  # the first two fill fresh memory
                best["publish"] = min(best.get("publish", float("inf")), time.perf_counter() - begun)
            (part,) = announcement.parts
            name = part.sources[0].shared_memory.name
            mapped = MappedSnapshot(Path(folder), name, announcement.weights, part.size_bytes)
            snapshot, entries = mapped.snapshot, list(part.tensors)
            timed("verify", lambda: verify(snapshot, entries, "shared memory"))  # noqa: B023
            views = [(entry.name, piece_view(snapshot, entry)) for entry in entries]
            timed("copy", lambda: copy_into_target(views))  # noqa: B023
            mapped.close()
        publisher.close()
    best["total/memcpy"] = (best["publish"] + best["verify"] + best["copy"]) / best["memcpy"]
    return best


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:14s} {value:.4f}")
