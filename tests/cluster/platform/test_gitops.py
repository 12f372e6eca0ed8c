"""GitOps as docs/gitops.md describes it: stable renderings, the Secrets to create, a server-side apply."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.support.control_plane import ControlPlane
from cluster.support.door import undefine
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, of_kind, pod_specs
from cluster.support.kubectl import KubectlFailed
from cluster.support.programs import find
from support.doc_blocks import blocks

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

Json = dict[str, Any]

PAGE = CHART.parents[1] / "docs" / "gitops.md"
_MANAGER = "argocd-controller"
_MAX_ANNOTATION_BYTES = 2**18
# A row of the table of Secrets: name, value and keys.
_ROW = re.compile(r"^\| `([a-z-]+)` \| `([a-zA-Z.]+)` \| (.*) \|$", re.MULTILINE)


def documented_values() -> dict[str, Json]:
    """Return the chart's values in the manifests of the page, by kind of manifest."""
    documents = [yaml.safe_load(block.text) for block in blocks(PAGE, "yaml")]
    manifests = {document["kind"]: document["spec"] for document in documents if "kind" in document}
    return {
        "Application": manifests["Application"]["source"]["helm"]["valuesObject"],
        "HelmRelease": manifests["HelmRelease"]["values"],
    }


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm")


@pytest.mark.parametrize("kind", ["Application", "HelmRelease"])
def test_renderings_are_stable_and_contain_no_secret(helm: Helm, kind: str) -> None:
    file = str(helm.values({"crds": {"install": False}, **documented_values()[kind]}))
    first, second = (helm("template", RELEASE, str(CHART), "-f", file) for _ in range(2))
    assert first == second
    objects = [item for item in yaml.safe_load_all(first) if item is not None]
    assert objects
    assert not of_kind(objects, "Secret")


def test_the_secrets_that_pods_need_are_those_of_the_table(helm: Helm) -> None:
    objects = helm.render(documented_values()["Application"])
    needed: dict[str, set[str]] = {}
    for pod in pod_specs(objects).values():
        for volume in pod.get("volumes", []):
            if "secret" in volume:
                keys = {item["key"] for item in volume["secret"]["items"]}
                needed.setdefault(volume["secret"]["secretName"], set()).update(keys)
        for variable in pod["containers"][0].get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                needed.setdefault(reference["name"], set()).add(reference["key"])
    rows = _ROW.findall(PAGE.read_text())
    assert needed == {name: set(re.findall("`([^`]+)`", keys)) for name, _, keys in rows}
    values = documented_values()["Application"]
    for name, path, _ in rows:
        value: Any = values
        for part in path.split("."):
            value = value[part]
        assert value == name


def _rules(acl: str) -> dict[str, str]:
    """Return the rules by user, without the passwords."""
    users = re.findall(r"^\s*user (\S+) (.*)$", acl, re.MULTILINE)
    return {name: re.sub(r"#\S+(?: \$\w+\))? ", "", rules) for name, rules in users}


def test_the_users_of_redis_have_the_rules_of_the_chart(helm: Helm) -> None:
    secrets = of_kind(helm.render({}), "Secret")
    [acl] = [secret["stringData"]["users.acl"] for secret in secrets if "stringData" in secret]
    expected = _rules(acl)
    # With a Secret of one's own the probes log in as the dashboard.
    del expected["probe"]
    assert _rules(PAGE.read_text()) == expected


@pytest.fixture
def platform_namespace(control_plane: ControlPlane) -> Iterator[None]:
    undefine(control_plane)
    control_plane.kubectl.create_namespace(NAMESPACE)
    yield
    control_plane.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s", timeout=70)


@pytest.mark.skipif(shutil.which("diff") is None, reason="kubectl diff needs the program diff")
def test_nothing_differs_after_a_server_side_apply(
    control_plane: ControlPlane, platform_namespace: None, helm: Helm
) -> None:
    kubectl = control_plane.kubectl
    # Argo CD leaves test hooks out.
    objects = [item for item in helm.render(documented_values()["Application"]) if item["kind"] != "Pod"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    server_side = ("--server-side", f"--field-manager={_MANAGER}", "-f", "-")
    [definition] = of_kind(objects, "CustomResourceDefinition")
    # A client-side apply would store it in an annotation.
    assert len(json.dumps(definition)) > _MAX_ANNOTATION_BYTES
    cluster_wide = [item for item in objects if "namespace" not in item["metadata"]]
    try:
        kubectl("apply", *server_side, stdin=text)
        kubectl.wait_for(f"crd/{definition['metadata']['name']}", "condition=Established")
        kubectl.wait_for(f"statefulset/{RELEASE}-redis", "jsonpath={.status.replicas}=1", namespace=NAMESPACE)
        # The operator writes it so.
        lease = {"spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}}
        kubectl(
            "patch", "lease", f"{RELEASE}-operator", "-n", NAMESPACE, "--type=merge", "-p", json.dumps(lease)
        )
        # kubectl diff fails where anything differs, and shows what.
        assert kubectl("diff", *server_side, stdin=text) == ""
        [changed] = [item for item in of_kind(objects, "Deployment") if item["spec"]["replicas"] == 2]
        changed["spec"]["replicas"] = 3
        with pytest.raises(KubectlFailed, match=r"\+ *replicas: 3"):
            kubectl("diff", *server_side, stdin=json.dumps(changed))
    finally:
        # The others go with their namespace.
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster_wide})
        kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", "-", stdin=text, timeout=70)
