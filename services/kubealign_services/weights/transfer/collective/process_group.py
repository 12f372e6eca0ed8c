"""Process group of one sender and the receivers of its weights: gloo between CPUs, NCCL between GPUs.

Independent of other groups of the process; unusable after the first failure.
"""

import contextlib
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

# Larger buckets are no faster, smaller ones slower.
BUCKET_BYTES = 16 << 20
_THREADS = 2


class BroadcastGroup:
    """Membership of this process in a broadcast group. The constructor blocks until all members have joined.

    Args:
        rank: 0 is the sender.
        timeout: Seconds for joining, and for each bucket.
        address: Address of this machine for the other members; empty uses the host name's.
        accelerator: Use NCCL on the current CUDA device.

    Raises:
        RuntimeError: The members did not join in time (torch.distributed.DistError).
    """

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        world_size: int,
        timeout: float,
        *,
        address: str = "",
        accelerator: bool = False,
    ) -> None:
        self.name = name
        self._device = torch.device("cuda") if accelerator else torch.device("cpu")
        group_store = PrefixStore(name, store)
        deadline = timedelta(seconds=timeout)
        make_group = _make_nccl_group if accelerator else _make_gloo_group
        self._group = make_group(group_store, rank, world_size, deadline, address)

    def broadcast(self, bucket: Tensor) -> None:
        """Fill the bucket with rank 0's bytes.

        Args:
            bucket: uint8 [n] in host memory, of equal length at all members.

        Raises:
            RuntimeError: A member failed or timed out.
        """
        if self._device.type == "cpu":
            self._group.broadcast(bucket, 0).wait()
            return
        staged = bucket.to(self._device)
        self._group.broadcast(staged, 0).wait()
        bucket.copy_(staged)

    def leave(self) -> None:
        """Leave the group; the other members notice at once."""
        with contextlib.suppress(RuntimeError):
            self._group.abort()


def _make_gloo_group(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = _THREADS
    device = gloo.create_device(hostname=address) if address else gloo.create_default_device()
    options._devices = [device]
    return gloo(store, rank, size, options)


def _make_nccl_group(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    """Create an NCCL group. NCCL determines the addresses itself."""
    nccl: Any = dist.ProcessGroupNCCL
    return nccl(store, rank, size, timeout)


def local_address_towards(host: str, port: int, timeout: float) -> str:
    """Return this machine's address on the route to host:port. Raises OSError."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        return str(connection.getsockname()[0])
