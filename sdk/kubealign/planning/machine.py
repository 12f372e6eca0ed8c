"""Machines for which a plan is computed."""

from dataclasses import dataclass
from enum import StrEnum

from kubealign.planning.byte_units import GIB, MIB


class Device(StrEnum):
    """Kind of device. On a CPU, device memory is the machine's memory."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True)
class Machine:
    """One node and its interconnect. Defaults: a node of eight H100 with 400 Gbit/s InfiniBand per device.

    Attributes:
        memory: Bytes of one device.
        devices: Devices per node.
        link_rate: Bytes per second between two devices of a node, one way.
        network_rate: Bytes per second of one device to other nodes, one way.
        copy_rate: Bytes per second of one memory copy on the host, for weight transfers.
    """

    memory: int = 80 * GIB
    devices: int = 8
    link_rate: float = 450e9
    network_rate: float = 50e9
    copy_rate: float = 10e9
    device: Device = Device.GPU


#: Resident host memory of a process that has imported torch, transformers and a role's modules, including its
#: share of the libraries; measured (docs/scaling.md).
PROCESS_BYTES = 850 * MIB
#: Device memory of a CUDA context, the libraries' workspaces and NCCL's buffers. An estimate, not measured on
#: a GPU.
CUDA_CONTEXT_BYTES = 1536 * MIB
