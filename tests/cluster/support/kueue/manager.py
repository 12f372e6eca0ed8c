"""Process of Kueue's manager, and its installation into a control plane."""

import http.client
import json
from pathlib import Path
from types import TracebackType
from typing import Self

from kubealign.local.processes.ports import LOOPBACK

from ..control_plane import ControlPlane
from ..daemon import Daemon
from ..programs import manifest_folder, program
from .certificates import new_certificates
from .manifests import (
    NAMESPACE,
    WEBHOOK_SERVICE,
    ManagerPorts,
    WebhookServer,
    certificate_secret,
    definitions,
    manager_configuration,
    webhook_configurations,
)

_READY_SECONDS = 90.0
# The definition of workloads alone has 1.4 MB.
_DEFINITION_SECONDS = 120
_REQUEST_SECONDS = 5.0


class KueueManager:
    """A context manager: Kueue, with its CRDs and webhooks installed in a control plane.

    Only tests of Kueue should use this control plane: CRDs and webhooks outlive the manager, and without the
    manager the API server refuses the objects that they are for. `folder` is used by this object alone.
    `multikueue`: AlignmentJobs can be dispatched to other clusters. Needs no root. Raises ProgramMissing
    where Kueue is not built."""

    def __init__(self, control_plane: ControlPlane, folder: Path, *, multikueue: bool = False) -> None:
        self.control_plane = control_plane
        self.folder = folder
        self.ports = ManagerPorts()
        binary = program("kueue")
        self._manifests = manifest_folder(binary)
        self._certificates = new_certificates(LOOPBACK, WEBHOOK_SERVICE)
        settings = folder / "configuration.json"
        command = [
            str(binary),
            f"--config={settings}",
            "--zap-log-level=2",
            # The visibility API is an API server of its own, with a fixed port.
            "--feature-gates=VisibilityOnDemand=false",
        ]
        environment = {"KUBECONFIG": str(control_plane.kubeconfig)}
        self.daemon = Daemon("kueue", command, control_plane.logs / "kueue.log", environment=environment)
        certificate_folder = folder / "certificates"
        self._certificates.write(certificate_folder)
        configuration = manager_configuration(self.ports, certificate_folder, multikueue=multikueue)
        settings.write_text(json.dumps(configuration, indent=2))

    def __enter__(self) -> Self:
        self._install()
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the manager and wait until it is ready. A restart keeps ports and certificates."""
        self.daemon.start()
        self.daemon.wait_until(self._ready, "readiness", _READY_SECONDS)

    def kill(self) -> None:
        """Kill the manager with SIGKILL. Until the next start the API server refuses writes of Workloads."""
        self.daemon.kill()

    def stop(self) -> None:
        """End the manager; its objects stay in the API."""
        self.daemon.stop()

    def uninstall(self) -> None:
        """Delete webhooks, CRDs and the namespace, for a control plane that other tests use afterwards.

        The manager must run, and no object of Kueue may be left: it removes the finalizers of its objects."""
        kubectl = self.control_plane.kubectl
        server = WebhookServer(self.ports.webhook, self._certificates.ca_certificate)
        hooks = webhook_configurations(self._manifests, server)
        crds = definitions(self._manifests, server)
        kinds = {hook["kind"]: hook["metadata"]["name"] for hook in hooks}
        limit = f"--timeout={_DEFINITION_SECONDS}s"
        for kind, name in kinds.items():
            kubectl("delete", kind, name)
        names = [crd["metadata"]["name"] for crd in crds]
        kubectl("delete", "crd", *names, limit, timeout=_DEFINITION_SECONDS + 10)
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")

    def _install(self) -> None:
        kubectl = self.control_plane.kubectl
        server = WebhookServer(self.ports.webhook, self._certificates.ca_certificate)
        crds = definitions(self._manifests, server)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        kubectl.apply(namespace, *crds, timeout=_DEFINITION_SECONDS)
        names = [f"crd/{crd['metadata']['name']}" for crd in crds]
        limit = f"--timeout={_DEFINITION_SECONDS}s"
        # Unlike the second, the first wait works while a definition has no conditions yet.
        for state in ("jsonpath={.status.acceptedNames.plural}", "condition=Established"):
            kubectl("wait", *names, f"--for={state}", limit, timeout=_DEFINITION_SECONDS + 10)
        kubectl.apply(certificate_secret(self._certificates.files))
        kubectl.apply(*webhook_configurations(self._manifests, server))

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.ports.health, timeout=_REQUEST_SECONDS)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
