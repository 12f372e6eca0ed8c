"""Kueue's own manifests, changed for a manager that runs outside the cluster.

A Service cannot reach such a manager, so webhooks and conversions call the manager by URL."""

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kubealign.local.processes.ports import LOOPBACK
from kubealign.spec.job import GROUP, KIND, VERSION
from support.free_address import free_port

Manifest = dict[str, Any]

NAMESPACE = "kueue-system"
#: Kueue's certificate rotation looks for the manifests under this prefix, which its kustomization adds.
_PREFIX = "kueue-"
WEBHOOK_SERVICE = f"{_PREFIX}webhook-service.{NAMESPACE}.svc"
CERTIFICATE_SECRET = f"{_PREFIX}webhook-server-cert"
_FRAMEWORK = f"{KIND}.{VERSION}.{GROUP}"
#: Resources whose webhooks are installed. Those of pods and jobs would refuse every such object while Kueue
#: is down, and no test uses Kueue's integrations.
_HOOKED_RESOURCES = frozenset({"clusterqueues", "cohorts", "workloads", "resourceflavors"})


@dataclass(frozen=True)
class ManagerPorts:
    """Free ports of this machine for the servers of one manager."""

    health: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)
    webhook: int = field(default_factory=free_port)


class WebhookServer:
    """Address of the manager's webhooks, as the API server calls them."""

    def __init__(self, port: int, ca_certificate: bytes) -> None:
        self._url = f"https://{LOOPBACK}:{port}"
        self._ca = base64.b64encode(ca_certificate).decode()

    def client_config(self, path: str) -> Manifest:
        """Return the `clientConfig` of a webhook with this path."""
        return {"url": f"{self._url}{path}", "caBundle": self._ca}


def definitions(folder: Path, server: WebhookServer) -> list[Manifest]:
    """Return Kueue's CustomResourceDefinitions, patched as its kustomization says.

    `folder` has Kueue's config/components."""
    root = folder / "config/components/crd"
    kustomization = _load(root / "kustomization.yaml")[0]
    crds = [_load(root / file)[0] for file in kustomization["resources"]]
    by_name = {crd["metadata"]["name"]: crd for crd in crds}
    for entry in kustomization["patches"]:
        patch = _load(root / entry["path"])[0]
        webhook = patch["spec"]["conversion"]["webhook"]
        webhook["clientConfig"] = server.client_config(webhook["clientConfig"]["service"]["path"])
        by_name[patch["metadata"]["name"]]["spec"]["conversion"] = patch["spec"]["conversion"]
    return crds


def webhook_configurations(folder: Path, server: WebhookServer) -> list[Manifest]:
    """Return Kueue's admission webhooks for its own resources."""
    configurations = _load(folder / "config/components/webhook/manifests.yaml")
    for configuration in configurations:
        configuration["metadata"]["name"] = f"{_PREFIX}{configuration['metadata']['name']}"
        configuration["webhooks"] = [hook for hook in configuration["webhooks"] if _is_own(hook)]
        for hook in configuration["webhooks"]:
            hook["clientConfig"] = server.client_config(hook["clientConfig"]["service"]["path"])
    return configurations


def _is_own(webhook: Manifest) -> bool:
    resources = {name.split("/")[0] for rule in webhook["rules"] for name in rule["resources"]}
    return resources <= _HOOKED_RESOURCES


def certificate_secret(files: dict[str, bytes]) -> Manifest:
    """Return the Secret in which Kueue looks for its certificates."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CERTIFICATE_SECRET, "namespace": NAMESPACE},
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def manager_configuration(ports: ManagerPorts, certificates: Path, *, multikueue: bool) -> Manifest:
    """Return the manager's configuration.

    Kueue has at least one integration; the one for Jobs ignores a Job without a queue. The entry of
    `externalFrameworks` is that of a cluster with kubealign. `multikueue`: MultiKueue dispatches its jobs."""
    frameworks = {"multiKueue": {"externalFrameworks": [{"name": _FRAMEWORK}]}} if multikueue else {}
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{ports.health}"},
        "metrics": {"bindAddress": f"{LOOPBACK}:{ports.metrics}"},
        "webhook": {"host": LOOPBACK, "port": ports.webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "internalCertManagement": {"enable": True},
        "integrations": {
            "frameworks": ["batch/job"],
            "externalFrameworks": [_FRAMEWORK],
        },
        **frameworks,
    }


def _load(file: Path) -> list[Manifest]:
    # The pure-Python parser takes seconds for the definition of workloads.
    return [document for document in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if document]
