"""The machines that a plan is for."""

from dataclasses import dataclass
from enum import StrEnum

from kubealign.plan.amounts import GIB, MIB


class Device(StrEnum):
    """What computes. On a CPU, device memory is the machine's."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """One node, and what joins it with others. Defaults: a node of eight H100 with 400 Gbit/s InfiniBand a
    device.

    memory: bytes of one device. devices: of a node. link: bytes a second between two devices of a node, one
    way. network: bytes a second of one device to other nodes, one way. copy: bytes a second of one memory
    copy on the host, which weights are handed over with.
    """

    memory: int = 80 * GIB
    devices: int = 8
    link: float = 450e9
    network: float = 50e9
    copy: float = 10e9
    device: Device = Device.GPU


#: Resident memory of a process that has imported torch, transformers and a role's own modules, and of its
#: share in the libraries; measured (docs/scaling.md), on the host.
PROCESS = 850 * MIB
#: What a CUDA context, its libraries' workspaces and NCCL's buffers take of a device. An estimate: no
#: GPU was there to measure.
CONTEXT = 1536 * MIB
