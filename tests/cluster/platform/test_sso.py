"""The manifests of docs/sso.md: a real API server admits them, and they fit what the chart renders."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.control_plane import ControlPlane
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, of_kind
from cluster.support.programs import find
from support.doc_blocks import blocks

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

Json = dict[str, Any]

PAGE = CHART.parents[1] / "docs" / "sso.md"
_DASHBOARD = f"{RELEASE}-dashboard"
_API_SERVERS_OWN_FILE = "AuthenticationConfiguration"


def documents() -> list[Json]:
    """Return the documents of the page's YAML blocks."""
    return [document for block in blocks(PAGE, "yaml") for document in yaml.safe_load_all(block.text)]


def manifests() -> dict[str, Json]:
    """Return the objects of the page by kind."""
    return {
        document["kind"]: document
        for document in documents()
        if document.get("kind") not in (None, _API_SERVERS_OWN_FILE)
    }


def chart_values() -> Json:
    [values] = [document for document in documents() if "kind" not in document]
    return values


@pytest.fixture
def namespaces(control_plane: ControlPlane) -> Iterator[None]:
    names = (NAMESPACE, "team-a")
    for name in names:
        control_plane.kubectl.create_namespace(name)
        control_plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield
    control_plane.kubectl("delete", "namespace", *names, "--timeout=60s", timeout=70)


def test_the_api_server_admits_the_manifests(control_plane: ControlPlane, namespaces: None) -> None:
    objects = list(manifests().values())
    assert [item["kind"] for item in objects] == ["RoleBinding", "Deployment", "Service", "Ingress"]
    template = manifests()["Deployment"]["spec"]["template"]
    # Pod Security refuses pods, and only warns of a Deployment whose pods it would refuse.
    metadata = {"name": "oauth2-proxy", "namespace": NAMESPACE, **template["metadata"]}
    objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    options = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    control_plane.kubectl("apply", *options, stdin=text)


def test_the_proxy_reaches_the_dashboard_of_the_chart(tmp_path: Path) -> None:
    rendered = Helm(tmp_path / "helm").render(chart_values())
    pod = manifests()["Deployment"]["spec"]["template"]
    arguments = dict(item.removeprefix("--").split("=", 1) for item in pod["spec"]["containers"][0]["args"])
    [service] = [item for item in of_kind(rendered, "Service") if item["metadata"]["name"] == _DASHBOARD]
    assert [port["port"] for port in service["spec"]["ports"]] == [443]
    assert arguments["upstream"] == f"https://{_DASHBOARD}.{service['metadata']['namespace']}.svc"
    [volume] = pod["spec"]["volumes"]
    [certificate] = [
        item
        for item in of_kind(rendered, "Secret")
        if item["metadata"]["name"] == volume["secret"]["secretName"]
    ]
    assert {item["key"] for item in volume["secret"]["items"]} <= set(certificate["data"])
    [policy] = [item for item in of_kind(rendered, "NetworkPolicy") if item["metadata"]["name"] == _DASHBOARD]
    peers = [
        peer["podSelector"]["matchLabels"] for rule in policy["spec"]["ingress"] for peer in rule["from"]
    ]
    assert pod["metadata"]["labels"] in peers
    # The audience that the API server accepts is the one for which the proxy gets tokens.
    [authentication] = [item for item in documents() if item.get("kind") == _API_SERVERS_OWN_FILE]
    issuer = authentication["jwt"][0]["issuer"]
    assert issuer["audiences"] == [arguments["client-id"]]
    assert issuer["url"] == arguments["oidc-issuer-url"]
    host = manifests()["Ingress"]["spec"]["rules"][0]["host"]
    assert arguments["redirect-url"] == f"https://{host}/oauth2/callback"
