"""Dashboard of a cluster as a child process of the test, with the rights that the chart grants."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from support.free_address import free_port

from .accounts import token
from .control_plane import ControlPlane
from .daemon import Daemon
from .helm import NAMESPACE, RELEASE, Helm

_READY_SECONDS = 60.0
_STOP_SECONDS = 20.0
_ANSWER_SECONDS = 20.0
_RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
ACCOUNT = f"{RELEASE}-dashboard"


@contextmanager
def charts_account(
    control_plane: ControlPlane, folder: Path, namespace: str, values: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Provide a token of the dashboard's account from the chart, moved to `namespace`.

    The account and its rights are deleted at the end."""
    rendered = json.dumps(
        [
            manifest
            for manifest in Helm(folder).render(values or {})
            if manifest["kind"] in _RIGHTS
            and manifest["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard"
        ]
    )
    objects = json.loads(rendered.replace(f'"{NAMESPACE}"', f'"{namespace}"'))
    control_plane.kubectl.apply(*objects)
    try:
        yield token(control_plane, namespace, ACCOUNT)
    finally:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        control_plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)


class DashboardProcess:
    """A context manager that runs `python -m kubealign_dashboard` and waits until it is ready.

    `settings` are KUBEALIGN_ variables without their prefix."""

    def __init__(self, folder: Path, kubeconfig: Path, name: str = "dashboard", **settings: Any) -> None:
        self.port = free_port()
        environment = {
            "KUBECONFIG": "",
            "KUBEALIGN_KUBECONFIG": str(kubeconfig),
            "KUBEALIGN_LISTEN": f"127.0.0.1:{self.port}",
            **{f"KUBEALIGN_{key}": str(value) for key, value in settings.items()},
        }
        command = [sys.executable, "-m", "kubealign_dashboard"]
        self.url = f"http://127.0.0.1:{self.port}"
        self.daemon = Daemon(name, command, folder / f"{name}.log", environment=environment)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.stop(_STOP_SECONDS)

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_until(self.ready, "readiness", _READY_SECONDS)

    def ready(self) -> bool:
        return self.get("/readyz") == "ok\n"

    def get(self, path: str) -> str:
        """Return the body of an unauthenticated GET, for any status; empty while nothing answers."""
        try:
            return httpx.get(f"{self.url}{path}", timeout=_ANSWER_SECONDS, trust_env=False).text
        except httpx.TransportError:
            return ""

    def client(self, token: str | None = None) -> httpx.Client:
        """Return a client whose paths are relative to /api/v1; the caller closes the client."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=_ANSWER_SECONDS, trust_env=False
        )
