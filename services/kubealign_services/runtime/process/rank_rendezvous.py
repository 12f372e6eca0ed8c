"""Rendezvous of the ranks of a group: a store at rank 0, and the process group that is created through it."""

import datetime
import ipaddress
import os
import socket
import time

import torch
import torch.distributed as dist
from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

_LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 2.0
_RETRY_SECONDS = 0.1


class GroupLost(RuntimeError):
    """The group has ended for this rank: rank 0 is gone, did not come in time, or has this rank registered
    already.
    """


def join_process_group(rank: int, world_size: int, rendezvous: str, timeout: float) -> Store:
    """Join the group at host:port and create the default process group. Returns the store.

    Rank 0 listens at the address, or, for a host name, at all addresses of its machine.

    Args:
        rendezvous: host:port; host is an address, or a name that stands for rank 0 alone and may not resolve
            yet.
        timeout: Seconds to wait for the other ranks.

    Raises:
        GroupLost: The other ranks did not come within `timeout` seconds.
        ValueError: `rendezvous` is not host:port.
        OSError: The port is in use.
    """
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"rendezvous is {rendezvous!r}; it is host:port")
    deadline = datetime.timedelta(seconds=timeout)
    try:
        store = _open_rank_store(rank, host, int(port), deadline)
        if store.add(f"joined/{rank}", 1) > 1:
            raise GroupLost(
                f"the group at {rendezvous} has a rank {rank} already: a group restarts as a whole"
            )
        _pin_gloo_to_loopback(host)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore("ranks", store.clone()),
            rank=rank,
            world_size=world_size,
            timeout=deadline,
        )
    except (DistError, TimeoutError) as error:
        raise GroupLost(
            f"the {world_size} ranks did not meet at {rendezvous} in {timeout:g} s: {error}"
        ) from error
    return store


def open_store(host: str, timeout: float) -> tuple[Store, int]:
    """Open a store of this process at a free port, for other processes to connect to. Returns (store, port).

    Args:
        host: An address of this machine, or a name that stands for it.
        timeout: Seconds that clients of the store wait.
    """
    listener = (
        socket.create_server((host, 0), family=_address_family(host))
        if _is_address(host)
        else _listen_on_all_addresses(0)
    )
    port = listener.getsockname()[1]
    own = host if _is_address(host) else _LOOPBACK
    deadline = datetime.timedelta(seconds=timeout)
    store = TCPStore(
        own, port, None, True, deadline, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def connect_store(host: str, port: int, timeout: float) -> Store:
    """Connect to the store that another process has opened. Raises TimeoutError, DistError."""
    address = _resolve_and_probe(host, port, timeout)
    return TCPStore(address, port, None, False, datetime.timedelta(seconds=timeout), wait_for_workers=False)


def _open_rank_store(rank: int, host: str, port: int, deadline: datetime.timedelta) -> TCPStore:
    if rank > 0:
        address = _resolve_and_probe(host, port, deadline.total_seconds())
        return TCPStore(address, port, None, False, deadline, wait_for_workers=False)
    if _is_address(host):
        listener = socket.create_server((host, port), family=_address_family(host))
        own = host
    else:
        # In a cluster the name of a new pod resolves to nothing at first, or to the previous pod.
        listener = _listen_on_all_addresses(port)
        own = _LOOPBACK
    return TCPStore(
        own, port, None, True, deadline, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _listen_on_all_addresses(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _resolve_and_probe(host: str, port: int, timeout: float) -> str:
    """Return the address at which rank 0 listens.

    Raises TimeoutError when nothing listens within `timeout` seconds.

    The name is resolved again for each short attempt: torch would keep trying an address that is no longer
    rank 0's until its whole timeout has passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
                return str(connection.getpeername()[0])
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank 0 was not reached: {error}") from error
        # Neither name resolution nor a socket that starts to listen can be waited for: poll.
        time.sleep(_RETRY_SECONDS)


def _address_family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _pin_gloo_to_loopback(host: str) -> None:
    """Restrict ranks of one machine to its loopback interface; gloo would use the address that the machine's
    name resolves to, which is right between machines only.
    """
    if _is_address(host) and ipaddress.ip_address(host).is_loopback:
        loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
        if loopback is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
