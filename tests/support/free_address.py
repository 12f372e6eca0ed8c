"""Ports of this machine that nobody else gets."""

from kubealign.local.processes.ports import LOOPBACK, PortAllocator

_ports = PortAllocator()


def free_port() -> int:
    """Of 127.0.0.1; kept for this test process until its end."""
    return _ports.allocate()


def free_address() -> str:
    """host:port, as a rendezvous is told."""
    return f"{LOOPBACK}:{free_port()}"
