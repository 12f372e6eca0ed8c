"""A real node: containerd, kubelet, kube-proxy and DNS, in separate namespaces."""

import http.client
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kubernetes import client

from . import cgroups, node_settings
from .control_plane import ControlPlane
from .daemon import Daemon
from .host_bind import host_bind_image, host_folders, pause_image
from .namespaces import CommandFailed, NodeNamespaces
from .programs import program
from .requirements import cni_folder, require_node

_READY_SECONDS = 60.0
_IMPORT_SECONDS = 600.0
_DNS_SECONDS = 2.0


class Node:
    """A context manager; needs root. `namespaces` must be open, and are closed with the node.

    Every container of the node sees the host's folders of `host_folders` under /host, read-only. The image
    HOST_BIND links to these folders, so its containers run this checkout's Python without any volume. All
    containers share one cache of compiled kernels. NetworkPolicies are accepted and not enforced, unless
    kube-router runs (`kube_router`). No image can be pulled; see `import_image`. A failed container starts
    again after at most `restart_seconds`.

    A further node of a cluster `joins` its first node: the namespaces are linked, and the further node uses
    the DNS server and the cache of compiled kernels of the first one."""

    def __init__(
        self,
        folder: Path,
        namespaces: NodeNamespaces,
        control_plane: ControlPlane,
        *,
        name: str = "real-0",
        restart_seconds: int = 2,
        joins: "Node | None" = None,
    ) -> None:
        """Prepare the node. Raises NodeImpossible where a requirement is missing."""
        require_node()
        self.name = name
        self.logs = folder / "logs"
        self.addresses = namespaces.addresses
        self._data = folder / "data"
        self._settings = folder / "settings"
        self._first = joins or self
        self._kernels = joins._kernels if joins else folder / "kernels"
        self._spaces = namespaces
        self._control_plane = control_plane
        self._cgroup = f"{self.addresses.link}-{name}"
        self._restart_seconds = restart_seconds
        config = self._settings
        self.containerd = self._daemon("containerd", "containerd", "--config", config / "containerd.toml")
        self.kubelet = self._daemon(
            "kubelet",
            program("kubelet"),
            f"--config={config / 'kubelet.yaml'}",
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--hostname-override={name}",
            f"--node-ip={self.addresses.node}",
        )
        self.kube_proxy = self._daemon(
            "kube-proxy", program("kube-proxy"), f"--config={config / 'kube-proxy.yaml'}"
        )
        self.dns = self._daemon("coredns", program("coredns"), "-conf", config / "Corefile")

    @property
    def daemons(self) -> list[Daemon]:
        """Processes of the node without the pods, in the order in which they start."""
        own = [self.containerd, self.kubelet, self.kube_proxy]
        return [*own, self.dns] if self._first is self else own

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the node and remove its data; the logs stay."""
        for daemon in reversed(self.daemons):
            daemon.kill()
        self._spaces.close()
        cgroups.remove(self._cgroup)
        shutil.rmtree(self._data, ignore_errors=True)

    def import_image(self, archive: Path) -> None:
        """Import an image archive as written by `docker save` or `buildah push docker-archive:`.

        Raises CommandFailed. Pods must not pull the image: any tag but `latest` avoids that."""
        self._ctr("images", "import", archive)

    def name_image(self, name: str, further: str) -> None:
        """Add a name to an image of the node, both names with registry and tag. Raises CommandFailed."""
        self._ctr("images", "tag", "--force", name, further)

    def images(self) -> list[str]:
        """Return the names of the node's images."""
        return self._ctr("images", "list", "-q").split()

    def add_seccomp_profile(self, name: str, text: str) -> None:
        """Add a profile of the type Localhost. `name`: path below the kubelet's folder of profiles."""
        path = self._data / "kubelet" / "seccomp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def further_daemon(self, name: str, *command: str | Path, environment: Mapping[str, str]) -> Daemon:
        """Return another process of the node, which the caller starts and ends, with a log beside theirs."""
        log = self.logs / f"{name}.log"
        return Daemon(name, self._spaces.command(*command), log, environment=environment)

    def runs_pod(self, uid: str) -> bool:
        """Return True while a container of the pod `uid` runs, also one that the kubelet does not know."""
        selected = f'labels."io.kubernetes.pod.uid"=={uid}'
        containers = set(self._ctr("containers", "list", "-q", selected).split())
        tasks = [line.split() for line in self._ctr("tasks", "list").splitlines()[1:]]
        return any(task[0] in containers and task[-1] == "RUNNING" for task in tasks)

    def pod_log(self, namespace: str, pod: str, uid: str) -> str:
        """Return the log of a pod's main container as it is on the node's disk."""
        files = sorted((self.logs / "pods" / f"{namespace}_{pod}_{uid}" / "main").glob("*.log"))
        return "".join(file.read_text() for file in files)

    def _start(self) -> None:
        if self._first is not self:
            self._spaces.join(self._first._spaces)
        self._write_settings()
        cgroups.make(self._cgroup)
        self._spaces.show(self._data / "containerd", node_settings.CONTAINERD_FOLDER)
        self._spaces.show(self._data / "kubelet", node_settings.KUBELET_FOLDER)
        self._spaces.show(self.logs / "pods", node_settings.POD_LOGS_FOLDER)
        self.containerd.start()
        self.containerd.wait_until(self._answers, "an answer", _READY_SECONDS)
        images = {
            "pause": pause_image(program("pause")),
            "hostbind": host_bind_image(host_folders()),
        }
        for name, content in images.items():
            archive = self._data / f"{name}.tar"
            archive.write_bytes(content)
            self.import_image(archive)
        for daemon in self.daemons[1:]:
            daemon.start()
        if self._first is self:
            self._publish_api_server()
        self.kubelet.wait_until(self.is_ready, "the node to be Ready", _READY_SECONDS)
        self._first.dns.wait_until(self._dns_answers, "an answer", _READY_SECONDS)

    def _write_settings(self) -> None:
        plugins = cni_folder()
        assert plugins is not None
        cni = self._settings / "cni"
        cni.mkdir(parents=True, exist_ok=True)
        self._kernels.mkdir(exist_ok=True)
        self._kernels.chmod(0o1777)  # for the user of any container
        default = json.loads(self._spaces.run("ctr", "oci", "spec"))
        resolver = self._settings / "resolv.conf"
        base = self._settings / "base.json"
        authority = self._control_plane.authority.certificate
        kubeconfig = self._control_plane.kubeconfig
        proxy = node_settings.kube_proxy(self.addresses, kubeconfig, self.name)
        files = {
            resolver: f"nameserver {self._first.addresses.node}\n",
            base: node_settings.base_spec(default, host_folders(), self._kernels),
            cni / "10-kubealign.conflist": node_settings.network(self.addresses),
            self._settings / "containerd.toml": node_settings.containerd(cni, plugins, base),
            self._settings / "kubelet.yaml": node_settings.kubelet(
                self._first.addresses.node, authority, self._cgroup, resolver, self._restart_seconds
            ),
            self._settings / "kube-proxy.yaml": proxy,
            self._settings / "Corefile": node_settings.corefile(self.addresses, kubeconfig),
        }
        for path, text in files.items():
            path.write_text(text)

    def _publish_api_server(self) -> None:
        """Publish the endpoint of the Service `kubernetes`, by which pods reach the API server.

        The API server runs without its own endpoint reconciler."""
        discovery = client.DiscoveryV1Api(self._control_plane.api)
        discovery.create_namespaced_endpoint_slice(
            "default",
            client.V1EndpointSlice(
                address_type="IPv4",
                endpoints=[client.V1Endpoint(addresses=[self._control_plane.host])],
                metadata=client.V1ObjectMeta(
                    name="kubernetes", labels={"kubernetes.io/service-name": "kubernetes"}
                ),
                ports=[client.DiscoveryV1EndpointPort(name="https", port=self._control_plane.port)],
            ),
        )

    def _daemon(self, name: str, *command: str | Path) -> Daemon:
        return Daemon(name, self._spaces.command(*command), self.logs / f"{name}.log")

    def _ctr(self, *arguments: str | Path) -> str:
        address = f"--address={node_settings.CONTAINERD_SOCKET}"
        return self._spaces.run("ctr", address, "--namespace=k8s.io", *arguments, timeout=_IMPORT_SECONDS)

    def _answers(self) -> bool:
        try:
            self._ctr("version")
        except CommandFailed:
            return False
        return True

    def is_ready(self) -> bool:
        """Return True when the Node object is Ready and has no taint."""
        try:
            node: Any = client.CoreV1Api(self._control_plane.api).read_node(self.name)
        except client.ApiException as error:
            if error.status == 404:
                return False
            raise
        conditions = node.status.conditions or []
        return not node.spec.taints and any(
            condition.type == "Ready" and condition.status == "True" for condition in conditions
        )

    def _dns_answers(self) -> bool:
        connection = http.client.HTTPConnection(
            self._first.addresses.node, node_settings.DNS_READY_PORT, timeout=_DNS_SECONDS
        )
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
