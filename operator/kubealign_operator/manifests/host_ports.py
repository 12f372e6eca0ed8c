"""Ports of the pods that use the network of their node.

Such pods share the ports of the node. Each pod of a job has ports of its own, which follow from the job's uid
and from the pod's place in the job. Where two jobs meet on a node with the same ports, the scheduler, which
sees them in the pods, chooses another node.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence

from kubealign.pod_contract import PodPorts
from kubealign.process_settings import Role
from kubealign.roles import Process

#: First port of a job, before the ephemeral ports of Linux (32768 and above).
_LOWEST, _FIRST_PORTS = 20_000, 4_000


def assign_host_ports(
    uid: str, pods: Sequence[Process], uses_host_network: Callable[[Process], bool]
) -> Mapping[str, PodPorts]:
    """Return the ports of each pod that uses the network of its node, by the name of its first process.

    Rollout workers come last, so that scaling them changes no other port.

    Args:
        pods: First process of each pod of the job.
        uses_host_network: Returns True for the process of such a pod; equal within a group.
    """
    by_group: dict[str, bool] = {}
    port = _LOWEST + zlib.crc32(uid.encode()) % _FIRST_PORTS
    ports: dict[str, PodPorts] = {}
    for process in sorted(pods, key=lambda pod: pod.group == Role.ROLLOUT):
        if process.group not in by_group:
            by_group[process.group] = uses_host_network(process)
        if not by_group[process.group]:
            continue
        count = len(process.pod_processes)
        ports[process.name] = PodPorts(
            grpc=port, metrics=port + count, health=port + 2 * count, rendezvous=port + 3 * count + 1
        )
        # The health of the pod, and of each of its processes.
        port += 3 * count + 2
    return ports
