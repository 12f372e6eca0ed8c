"""Enforcement of NetworkPolicies by kube-router, on the nodes of a real cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from kubernetes import client

from .behaviour import Json
from .cluster import Cluster
from .daemon import Daemon, DaemonFailed
from .kube_namespaces import temporary_namespace
from .network_probes import Prober, Target, listening_pod, start_listeners
from .node import Node
from .programs import program

_EFFECT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_ALLOW = "everything-is-allowed"
# The network plugin of the nodes routes; only the firewall of kube-router runs.
_FLAGS = (
    "--run-firewall=true",
    "--run-router=false",
    "--run-service-proxy=false",
    "--health-port=0",
    "--metrics-port=0",
)


class KubeRouter:
    """A context manager: kube-router on every node of a cluster, in force when the context begins.

    kube-router rejects connections: their clients see a refusal. Packet filter rules stay when it ends, so
    the cluster must not be used afterwards. A node always reaches its own pods."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self.daemons = [self._daemon(node) for node in nodes]

    def __enter__(self) -> Self:
        core = client.CoreV1Api(self._cluster.control_plane.api)
        for node in self._nodes:
            # kube-router reads the pods' addresses from the Node object, where no controller writes them.
            pods = node.addresses.pods
            core.patch_node(node.name, {"spec": {"podCIDR": pods, "podCIDRs": [pods]}})
        try:
            for daemon in self.daemons:
                daemon.start()
            self._wait_until_enforced()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def wait_until(self, ready: Callable[[], bool], what: str, seconds: float = _EFFECT_SECONDS) -> None:
        """Wait until `ready` returns True: policies take effect some time after they are created.

        Raises DaemonFailed with the ends of the logs at the deadline, or when kube-router ends earlier."""
        end = time.monotonic() + seconds
        while not ready():
            ended = [daemon.name for daemon in self.daemons if not daemon.alive]
            if ended or time.monotonic() > end:
                logs = "\n".join(f"{daemon.name}:\n{daemon.tail()}" for daemon in self.daemons)
                state = f"{', '.join(ended)} ended" if ended else f"waited {seconds:g} s"
                raise DaemonFailed(f"{state} before {what}; the logs end:\n{logs}")
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def everything_allowed(self, namespace: str, prober: Prober, target: Target) -> Iterator[None]:
        """Allow all traffic of the pods of a namespace by one more policy, and withdraw it at the end.

        NetworkPolicies add up, so this policy lifts all others. Waits until `prober` reaches `target`,
        which the others forbid, and at the end until it does not any more."""
        kubectl = self._cluster.kubectl
        spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}
        kubectl.apply(_policy(_ALLOW, spec), namespace=namespace)
        try:
            self.wait_until(partial(prober.reaches, target), f"{prober.pod} reaches {target}")
            yield
        finally:
            kubectl("delete", "networkpolicy", _ALLOW, "-n", namespace)
        self.wait_until(partial(_refuses, prober, target), f"{target} refuses {prober.pod}")

    def _daemon(self, node: Node) -> Daemon:
        control_plane = self._cluster.control_plane
        return node.further_daemon(
            f"kube-router-{node.name}",
            program("kube-router"),
            *_FLAGS,
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--hostname-override={node.name}",
            f"--service-cluster-ip-range={control_plane.service_range}",
            environment={"NODE_NAME": node.name},
        )

    def _wait_until_enforced(self) -> None:
        """Wait until a policy without any rule protects a pod of each node from a pod of another node."""
        kubectl = self._cluster.kubectl
        with temporary_namespace(self._cluster.control_plane) as namespace:
            pods = [listening_pod(f"on-{node.name}", node.name) for node in self._nodes]
            probers = start_listeners(kubectl, namespace, *pods)
            targets = [target for one in probers for target in one.listening()]
            # Each pod is tried from the next one.
            pairs = list(zip(probers[1:] + probers[:1], targets, strict=True))
            for prober, target in pairs:
                self.wait_until(partial(prober.reaches, target), f"{prober.pod} reaches {target}")
            nothing_enters = _policy("nothing-enters", {"podSelector": {}, "policyTypes": ["Ingress"]})
            kubectl.apply(nothing_enters, namespace=namespace)
            for prober, target in pairs:
                self.wait_until(partial(_refuses, prober, target), f"{target} refuses {prober.pod}")

    def _stop(self) -> None:
        for daemon in self.daemons:
            daemon.kill()


def _refuses(prober: Prober, target: Target) -> bool:
    return not prober.reaches(target)


def _policy(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
