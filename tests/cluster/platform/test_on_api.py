"""The chart against a real API server: every object is accepted; releases install, upgrade and uninstall."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from kubernetes import client

from cluster.support.chart_values import VALUES
from cluster.support.control_plane import ControlPlane
from cluster.support.door import undefine
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm, of_kind, pod_specs
from cluster.support.kubectl import KubectlFailed
from cluster.support.programs import find
from cluster.support.simulated_kubelet import SimulatedKubelet
from kubealign.roles import roles
from kubealign_operator import names as operator_names
from kubealign_operator.controller.config import load_config
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner.validation import parse_job
from support.rendering.jobs import UID, ppo

pytestmark = pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`")

OPERATOR = f"{RELEASE}-operator"
REDIS = f"{RELEASE}-redis"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
# Kinds of all namespaced objects of a release.
KINDS = (
    "deployments,replicasets,statefulsets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "leases,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"
)
# Objects that Kubernetes makes in every namespace.
ALWAYS_THERE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
# This cluster has no volume provisioner, so the claim would stay unbound and Redis unscheduled.
INSTALLED = {"redis": {"embedded": {"persistence": {"enabled": False}}}}
_WAIT = ("--wait", "--timeout", "90s")
_HELM_SECONDS = 120.0


@pytest.fixture(scope="module")
def platform(control_plane: ControlPlane) -> Iterator[None]:
    """Namespaces of the platform, with restricted Pod Security, and no custom resource definition."""
    undefine(control_plane)
    for name in (NAMESPACE, "team-a", "team-b"):
        control_plane.kubectl.create_namespace(name)
        labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        control_plane.kubectl("label", "namespace", name, *labels)
    yield
    control_plane.kubectl("delete", "namespace", NAMESPACE, "team-a", "team-b", "--timeout=60s", timeout=70)


@pytest.fixture
def helm(control_plane: ControlPlane, tmp_path: Path) -> Helm:
    return Helm(tmp_path / "helm", control_plane.kubeconfig)


def names(control_plane: ControlPlane, kinds: str, *where: str) -> set[str]:
    """Return KIND/NAME of the existing objects of these kinds."""
    resources = control_plane.kubectl("get", kinds, "-o", "name", "--ignore-not-found", *where).split()
    return {name.partition("/")[0].partition(".")[0] + "/" + name.partition("/")[2] for name in resources}


def dry_run(control_plane: ControlPlane, *objects: dict[str, Any]) -> None:
    """Apply objects as a dry run. Raises KubectlFailed where the API server would refuse one of them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    control_plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
    )


def test_the_api_server_takes_every_object(control_plane: ControlPlane, platform: None, helm: Helm) -> None:
    dry_run(control_plane, *of_kind(helm.render({}), "CustomResourceDefinition"))
    # The CRD is large and always the same. The Prometheus operator's kind is not defined in this cluster.
    left_out = ("CustomResourceDefinition", "ServiceMonitor")
    for values in VALUES.values():
        dry_run(
            control_plane, *(manifest for manifest in helm.render(values) if manifest["kind"] not in left_out)
        )


def restricted_only(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod of this spec without references to other objects: account, claim, priority class."""
    pod_spec = {
        key: value for key, value in spec.items() if key not in ("serviceAccountName", "priorityClassName")
    }
    known = {volume["name"] for volume in pod_spec.get("volumes", [])}
    mounts = [mount for mount in pod_spec["containers"][0].get("volumeMounts", []) if mount["name"] in known]
    pod_spec["containers"] = [{**pod_spec["containers"][0], "volumeMounts": mounts}]
    metadata = {"name": "tried", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**pod_spec, "restartPolicy": "Never"},
    }


def test_every_pod_is_restricted(control_plane: ControlPlane, platform: None, helm: Helm) -> None:
    # Pod Security refuses pods, and only warns of a Deployment whose pods it would refuse.
    specs = {
        name: spec
        for chart_values in VALUES.values()
        for name, spec in pod_specs(helm.render(chart_values)).items()
    }
    assert {name.partition("/")[0] for name in specs} == {"Deployment", "StatefulSet", "Pod"}
    for spec in specs.values():
        dry_run(control_plane, restricted_only(spec))
        loose = restricted_only(spec)
        del loose["spec"]["containers"][0]["securityContext"]
        with pytest.raises(KubectlFailed, match="restricted"):
            dry_run(control_plane, loose)


def test_pods_of_jobs_without_users_are_restricted(
    control_plane: ControlPlane, platform: None, helm: Helm, tmp_path: Path
) -> None:
    """Check the pods of a job as the operator builds them from the configuration for OpenShift."""
    maps = of_kind(helm.render(VALUES["openshift"]), "ConfigMap")
    [text] = [config_map["data"]["config.yaml"] for config_map in maps if "config.yaml" in config_map["data"]]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    job = parse_job(ppo())
    context = RenderContext(job.name, NAMESPACE, UID, job, load_config(file).platform.platform())
    pods = [build_pod(context, process, 0) for process in (operator_names.bus(), *roles(job))]
    assert {pod["spec"]["securityContext"].get("runAsUser") for pod in pods} == {None}
    for pod in pods:
        # Objects that this cluster does not have.
        pod["metadata"].pop("ownerReferences", None)
        pod["spec"].pop("priorityClassName", None)
    dry_run(control_plane, *pods)
    del pods[-1]["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(KubectlFailed, match="restricted"):
        dry_run(control_plane, pods[-1])


def test_a_release_is_installed_upgraded_and_uninstalled(
    control_plane: ControlPlane, simulated: SimulatedKubelet, platform: None, helm: Helm
) -> None:
    cluster_wide = ("crds,clusterroles,clusterrolebindings",)
    before = names(control_plane, *cluster_wide)
    values = ("--namespace", NAMESPACE, "-f", str(helm.values(INSTALLED)))
    notes = helm("install", RELEASE, str(CHART), *values, *_WAIT, timeout=_HELM_SECONDS)
    assert "Redis has no volume" in notes
    control_plane.kubectl("get", "alignmentjobs", "-A")

    # The operator fills in the Lease, and every job holds the CA and a user of Redis: an upgrade keeps both.
    lease = '{"spec":{"holderIdentity":"one","leaseDurationSeconds":15}}'
    control_plane.kubectl("patch", "lease", OPERATOR, "-n", NAMESPACE, "--type=merge", "-p", lease)
    secret = control_plane.kubectl("get", "secret", REDIS, "-n", NAMESPACE, "-o", "jsonpath={.data}")
    pods = names(control_plane, "pods", "-n", NAMESPACE)
    more = {"operator": {"replicas": 3}, **INSTALLED}
    values = ("--namespace", NAMESPACE, "-f", str(helm.values(more)))
    helm("upgrade", RELEASE, str(CHART), *values, *_WAIT, timeout=_HELM_SECONDS)
    secret_after = control_plane.kubectl("get", "secret", REDIS, "-n", NAMESPACE, "-o", "jsonpath={.data}")
    assert json.loads(secret_after) == json.loads(secret)
    assert set(json.loads(secret_after)) == {
        "operator-password",
        "dashboard-password",
        "probe-password",
        "users.acl",
        "ca.crt",
        "tls.crt",
        "tls.key",
    }
    assert pods < names(control_plane, "pods", "-n", NAMESPACE)
    holder = control_plane.kubectl(
        "get", "lease", OPERATOR, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"
    )
    assert holder == "one"

    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", timeout=_HELM_SECONDS)
    control_plane.kubectl(
        "wait", "pods", "--all", "-n", NAMESPACE, "--for=delete", "--timeout=60s", timeout=70
    )
    assert names(control_plane, KINDS, "-n", NAMESPACE) == ALWAYS_THERE
    assert names(control_plane, *cluster_wide) - before == {
        "customresourcedefinition/alignmentjobs.kubealign.dev"
    }
    control_plane.kubectl("delete", "crd", "alignmentjobs.kubealign.dev", "--timeout=30s")


@pytest.mark.parametrize("values", ["default", "two-namespaces"])
def test_the_operators_account_has_only_the_rights_it_needs(
    control_plane: ControlPlane, platform: None, helm: Helm, values: str
) -> None:
    objects = of_kind(
        helm.render(VALUES[values]),
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    )
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    control_plane.kubectl("apply", "-f", "-", stdin=text)

    authorization = client.AuthorizationV1Api(control_plane.api)

    def may(verb: str, what: str, namespace: str) -> bool:
        """Return True when the operator's account has a right.

        `what` is GROUP/RESOURCE, GROUP/RESOURCE/SUBRESOURCE or GROUP/RESOURCE//NAME."""
        group, resource, subresource, name = [*what.split("/"), "", ""][:4]
        asked = client.V1ResourceAttributes(
            group=group, resource=resource, subresource=subresource, name=name, namespace=namespace, verb=verb
        )
        spec = client.V1SubjectAccessReviewSpec(user=ACCOUNT, resource_attributes=asked)
        answer = authorization.create_subject_access_review(client.V1SubjectAccessReview(spec=spec))
        return answer.status is not None and bool(answer.status.allowed)

    try:
        assert may("create", "/pods", "team-a")
        assert may("patch", "kubealign.dev/alignmentjobs/status", "team-b")
        assert may("create", "/secrets", "team-a")
        assert may("update", f"coordination.k8s.io/leases//{OPERATOR}", NAMESPACE)
        assert may("create", "/pods", "default") == (values == "default")
        for verb, what, namespace in (
            ("list", "/secrets", "team-a"),
            ("watch", "/secrets", "team-a"),
            ("delete", "/secrets", "team-a"),
            ("patch", "kubealign.dev/alignmentjobs", "team-a"),
            ("create", "/pods/exec", "team-a"),
            ("create", "coordination.k8s.io/leases", NAMESPACE),
            ("update", "coordination.k8s.io/leases//another", NAMESPACE),
            ("get", "/nodes", ""),
            ("create", "/serviceaccounts/token", "team-a"),
        ):
            assert not may(verb, what, namespace), f"{verb} {what} in {namespace}"
    finally:
        control_plane.kubectl("delete", "-f", "-", stdin=text)


def test_users_of_a_namespace_get_the_jobs_with_the_clusters_own_roles(
    control_plane: ControlPlane, platform: None, helm: Helm
) -> None:
    roles = [
        role
        for role in of_kind(helm.render({}), "ClusterRole")
        if role["metadata"]["labels"]["app.kubernetes.io/component"] == "users"
    ]
    assert {role["metadata"]["name"] for role in roles} == {f"{RELEASE}-view", f"{RELEASE}-edit"}
    expected = {"view": {"get", "list", "watch"}, "edit": {"create", "delete", "patch", "update"}}
    for role in roles:
        level = role["metadata"]["name"].rpartition("-")[2]
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{level}"] == "true"
        verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
        assert expected[level] <= verbs
        assert not any(
            resource.endswith("/status") for rule in role["rules"][1:] for resource in rule["resources"]
        )


@pytest.mark.parametrize(
    ("name", "service"), [(REDIS, REDIS), (f"{RELEASE}-dashboard-tls", f"{RELEASE}-dashboard")]
)
def test_the_secrets_certificate_is_for_the_services_name(helm: Helm, name: str, service: str) -> None:
    secrets = {manifest["metadata"]["name"]: manifest for manifest in of_kind(helm.render({}), "Secret")}
    secret = secrets[name]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    alternative_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{service}.{NAMESPACE}.svc" in alternative_names.get_values_for_type(x509.DNSName)
