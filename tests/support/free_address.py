"""Free ports of this machine that no other test process gets."""

from kubealign.local.processes.ports import LOOPBACK, PortAllocator

_ports = PortAllocator()


def free_port() -> int:
    """Return a free port of 127.0.0.1, reserved for this test process until its end."""
    return _ports.allocate()


def free_address() -> str:
    """Return host:port for a rendezvous."""
    return f"{LOOPBACK}:{free_port()}"
