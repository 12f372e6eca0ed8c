"""Process group of one sender and the receivers of its weights: gloo between CPUs, NCCL between GPUs.

Independent of other groups of the process; unusable after the first failure.
"""

import contextlib
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

# Larger buckets are no faster, smaller ones slower.
BUCKET_BYTES = 16 << 20
_THREADS = 2


@dataclass(frozen=True)
class GroupMember:
    """One process's place in a broadcast group.

    Args:
        group: Name of the group.
        rank: 0 is the sender.
        address: Address of this machine for the other members; empty uses the host name's.
        accelerator: Use NCCL on the current CUDA device.
    """

    group: str
    rank: int
    world_size: int
    address: str = ""
    accelerator: bool = False


class BroadcastGroup:
    """Membership of this process in a broadcast group. The constructor blocks until all members have joined.

    Args:
        timeout: Seconds for joining, and for each bucket.

    Raises:
        RuntimeError: The members did not join in time (torch.distributed.DistError).
    """

    def __init__(self, store: Store, member: GroupMember, timeout: float) -> None:
        self.name = member.group
        self._device = torch.device("cuda") if member.accelerator else torch.device("cpu")
        make_group = _make_nccl_group if member.accelerator else _make_gloo_group
        self._group = make_group(PrefixStore(member.group, store), member, timedelta(seconds=timeout))

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


def _make_gloo_group(store: Store, member: GroupMember, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = _THREADS
    address = member.address
    device = gloo.create_device(hostname=address) if address else gloo.create_default_device()
    options._devices = [device]
    return gloo(store, member.rank, member.world_size, options)


def _make_nccl_group(store: Store, member: GroupMember, timeout: timedelta) -> Any:
    """Create an NCCL group. NCCL determines the addresses itself."""
    nccl: Any = dist.ProcessGroupNCCL
    return nccl(store, member.rank, member.world_size, timeout)


def local_address_towards(host: str, port: int, timeout: float) -> str:
    """Return this machine's address on the route to host:port. Raises OSError."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        return str(connection.getsockname()[0])
