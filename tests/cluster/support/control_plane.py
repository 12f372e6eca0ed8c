"""etcd, the API server, the controllers and the scheduler, on free ports, with all files in one folder."""

import http.client
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kubernetes import client, config

from support.free_address import free_port

from .behaviour import Behave
from .credentials import Authority, signing_key, token
from .daemon import Daemon
from .kubeconfig import write_kubeconfig
from .kubectl import Kubectl
from .programs import program
from .simulated_kubelet import SimulatedKubelet

_READY_SECONDS = 60.0
_REQUEST_SECONDS = 5.0


class ControlPlane:
    """A context manager: a Kubernetes API without nodes. Needs no root; touches nothing outside `folder`.

    `folder` is used by this object alone. `host` is the address that the API server listens on,
    `service_range` the network of its Services, `api_flags` are added to the API server's command line.
    The controllers have enough workers for thousands of pods."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        service_range: str = "10.96.0.0/16",
        api_flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.kubeconfig = folder / "admin.kubeconfig"
        self.host = host
        self.port = free_port()
        self.service_range = service_range
        self.token = token()
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "tls")
        self.kubectl = Kubectl(self.kubeconfig)
        self._etcd_port = free_port()
        self._api_flags = list(api_flags)
        self._write_credentials()
        self.etcd = self._daemon("etcd", self._etcd_flags())
        self.apiserver = self._daemon("kube-apiserver", self._apiserver_flags())
        self.controller_manager = self._daemon("kube-controller-manager", self._controller_manager_flags())
        self.scheduler = self._daemon("kube-scheduler", self._scheduler_flags())
        self._api: client.ApiClient | None = None

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def store(self) -> str:
        """URL of etcd, which answers every user of this machine."""
        return f"http://127.0.0.1:{self._etcd_port}"

    @property
    def daemons(self) -> list[Daemon]:
        """Processes of the control plane, in the order in which they start."""
        return [self.etcd, self.apiserver, self.controller_manager, self.scheduler]

    @property
    def api(self) -> client.ApiClient:
        """API client of the administrator, for `client.CoreV1Api(...)` and similar classes."""
        if self._api is None:
            self._api = self.new_api()
        return self._api

    def new_api(self) -> client.ApiClient:
        """Return a new API client with its own connections, for use in another thread."""
        settings = client.Configuration()
        config.load_kube_config(str(self.kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
        # A proxy from the environment would not reach this machine's own addresses.
        settings.proxy = None
        settings.no_proxy = "*"
        settings.connection_pool_maxsize = 32
        return client.ApiClient(settings)

    @property
    def tls(self) -> ssl.SSLContext:
        """TLS context that trusts this cluster's certificates only."""
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def simulated_kubelet(
        self, *, behave: Behave | None = None, nodes: int = 1, capacity: Mapping[str, str] | None = None
    ) -> SimulatedKubelet:
        """Return simulated nodes for this control plane, which the caller enters; see SimulatedKubelet."""
        return SimulatedKubelet(self.url, self.tls, self.token, behave=behave, nodes=nodes, capacity=capacity)

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
            self.start_apiserver()
            self.controller_manager.start()
            self.scheduler.start()
            self.controller_manager.wait_until(
                self._has_service_account, "the first service account", _READY_SECONDS
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process, the last started first."""
        if self._api is not None:
            self._api.close()  # type: ignore[no-untyped-call]
            self._api = None
        self.scheduler.kill()
        self.controller_manager.kill()
        # Watches that clients left open would keep the API server from an orderly shutdown.
        self.apiserver.kill()
        self.etcd.stop()

    def start_apiserver(self) -> None:
        """Start the API server and wait until it is ready. A restart keeps the port and the data."""
        self.apiserver.start()
        self.apiserver.wait_until(self._ready, "readiness", _READY_SECONDS)

    def kill_apiserver(self) -> None:
        """Kill the API server with SIGKILL: every connection and watch breaks, no stored data is lost."""
        self.apiserver.kill()

    def restart_apiserver(self) -> None:
        """Kill the API server with SIGKILL, start it again and wait until it is ready."""
        self.kill_apiserver()
        self.start_apiserver()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a GET as the administrator. Raises OSError without an answer."""
        connection = http.client.HTTPSConnection(
            self.host, self.port, context=self.tls, timeout=_REQUEST_SECONDS
        )
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _has_service_account(self) -> bool:
        # Pods of a namespace are refused until the controllers have made its service account.
        return self.get("/api/v1/namespaces/default/serviceaccounts/default")[0] == http.client.OK

    def _daemon(self, name: str, flags: list[str]) -> Daemon:
        return Daemon(name, [program(name), *flags], self.logs / f"{name}.log")

    def _write_credentials(self) -> None:
        # The first address of the range is the Service `kubernetes`, which pods call.
        first = str(ipaddress.ip_network(self.service_range)[1])
        cluster_names = [
            "kubernetes.default.svc.cluster.local",
            "kubernetes.default.svc",
            "kubernetes.default",
        ]
        names = sorted({"localhost", "127.0.0.1", self.host, first, *cluster_names})
        self._serving = self.authority.server("kube-apiserver", names)
        # The kubelet authenticates its callers; this certificate names the API server.
        self._calling = self.authority.client("kube-apiserver-client", "kube-apiserver", "system:masters")
        self._signing_key = self.folder / "tls" / "service-accounts.key"
        signing_key(self._signing_key)
        self._tokens = self.folder / "tls" / "tokens.csv"
        self._tokens.touch(mode=0o600)
        self._tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        write_kubeconfig(self.kubeconfig, self.url, self.authority.certificate, self.token)

    def _etcd_flags(self) -> list[str]:
        client_url = f"http://127.0.0.1:{self._etcd_port}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={4 << 30}",
            "--log-level=warn",
        ]

    def _apiserver_flags(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self.host}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            f"--kubelet-client-certificate={self._calling.certificate}",
            f"--kubelet-client-key={self._calling.key}",
            f"--token-auth-file={self._tokens}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._signing_key}",
            f"--service-account-signing-key-file={self._signing_key}",
            f"--service-cluster-ip-range={self.service_range}",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            "--profiling=false",
            *self._api_flags,
        ]

    def _controller_manager_flags(self) -> list[str]:
        wide = ("statefulset", "job", "endpoint", "service-endpoint", "replicaset", "deployment", "namespace")
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self._signing_key}",
            "--authentication-skip-lookup",
            "--leader-elect=false",
            # No HTTPS endpoint: one free port fewer to find.
            "--secure-port=0",
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
            "--concurrent-gc-syncs=40",
            # A new node takes pods within a second; a lost one is still noticed after the usual 40 s.
            "--node-monitor-period=1s",
            # A claim that the binder sees before its volume is bound at the next sync.
            "--pvclaimbinder-sync-period=1s",
            *(f"--concurrent-{kind}-syncs=20" for kind in wide),
        ]

    def _scheduler_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--authentication-skip-lookup",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
        ]
