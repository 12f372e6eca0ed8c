"""A process group of one sender and the receivers of its weights: gloo between CPUs, NCCL between GPUs.

It is made beside whatever groups the process is in already, and is worth nothing after the first failure.
"""

import contextlib
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

# Buckets of more bytes are no faster, and of fewer slower.
BUCKET_BYTES = 16 << 20
_THREADS = 2


class BroadcastGroup:
    """This process's membership. rank: 0 sends. timeout: seconds to meet, and for each bucket. address: of
    this machine's, at which the others reach it; empty: what its name stands for. accelerator: over NCCL, on
    the current CUDA device. Blocks until all members have come.

    Raises RuntimeError (torch.distributed.DistError) when they do not."""

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
        own = PrefixStore(name, store)
        deadline = timedelta(seconds=timeout)
        made = _nccl if accelerator else _gloo
        self._group = made(own, rank, world_size, deadline, address)

    def broadcast(self, stretch: Tensor) -> None:
        """Fill it with what rank 0 has in its own. stretch: uint8 [n], in the host's memory, as long at all
        members. Raises RuntimeError when a member fails, or is not there in time."""
        if self._device.type == "cpu":
            self._group.broadcast(stretch, 0).wait()
            return
        staged = stretch.to(self._device)
        self._group.broadcast(staged, 0).wait()
        stretch.copy_(staged)

    def end(self) -> None:
        """Leave: the others notice at once."""
        with contextlib.suppress(RuntimeError):
            self._group.abort()


def _gloo(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = _THREADS
    device = gloo.create_device(hostname=address) if address else gloo.create_default_device()
    options._devices = [device]
    return gloo(store, rank, size, options)


def _nccl(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> Any:
    """NCCL finds its addresses itself."""
    nccl: Any = dist.ProcessGroupNCCL
    return nccl(store, rank, size, timeout)


def address_towards(host: str, port: int, timeout: float) -> str:
    """This machine's address on the way to another's host:port. Raises OSError."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        return str(connection.getsockname()[0])
