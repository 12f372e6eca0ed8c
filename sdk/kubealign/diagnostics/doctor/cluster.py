"""Checks of a cluster's prerequisites for jobs, with the caller's rights. Read-only."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from kubealign import __version__
from kubealign.client.errors import Forbidden, KubealignError, Unauthenticated
from kubealign.diagnostics.doctor.check_result import CheckResult, missing, ok, warning
from kubealign.kube.api import KubernetesApi
from kubealign.spec.job import GROUP, VERSION

_INSTALL = "helm install kubealign charts/kubealign -n kubealign-system --create-namespace"
_PART_OF = "app.kubernetes.io/part-of=kubealign"
_COMPONENT = "app.kubernetes.io/component"
_RELEASE = "app.kubernetes.io/version"
_USUAL_NAMESPACE = "kubealign-system"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
#: (verb, group, resource, subresource): required rights, and rights without which some commands fail.
_REQUIRED = (
    ("create", GROUP, "alignmentjobs", ""),
    ("get", GROUP, "alignmentjobs", ""),
    ("list", GROUP, "alignmentjobs", ""),
)
_USEFUL = (
    ("watch", GROUP, "alignmentjobs", ""),
    ("patch", GROUP, "alignmentjobs", ""),
    ("delete", GROUP, "alignmentjobs", ""),
    ("patch", GROUP, "alignmentjobs", "scale"),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("list", "events.k8s.io", "events", ""),
)


async def run_checks(api: KubernetesApi, namespace: str) -> AsyncIterator[CheckResult]:
    """Yield one result per check; only the first where the API server does not respond."""
    try:
        version = await api.get("/version")
    except Unauthenticated as error:
        yield missing("API server", str(error), "log in again, or name another --context")
        return
    except KubealignError as error:
        yield missing(
            "API server", str(error), "name another --context or --kubeconfig, or repair the connection"
        )
        return
    yield ok("API server", f"{api.server}, Kubernetes {version.get('gitVersion', '?')}")
    resource = await _check_crd(api)
    yield resource
    yield await _check_rights(api, namespace)
    parts = await _check_platform(api)
    for part in parts:
        yield part
    yield await _check_storage(api)


async def _check_crd(api: KubernetesApi) -> CheckResult:
    what = f"alignmentjobs.{GROUP}"
    try:
        group = await api.get(f"/apis/{GROUP}")
    except Forbidden as error:
        return warning(what, str(error), "ask the cluster's administrator whether kubealign is installed")
    except KubealignError:
        return missing(what, "not installed in the cluster", _INSTALL)
    served = [str(version.get("version")) for version in group.get("versions") or []]
    if VERSION not in served:
        return missing(
            what, f"served as {', '.join(served)}, not as {VERSION}", "install the SDK of the chart's version"
        )
    try:
        crd = await api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/alignmentjobs.{GROUP}")
    except KubealignError:
        # Reading CRDs may be forbidden; the resource is served, which is sufficient.
        return ok(what, VERSION)
    release = (crd["metadata"].get("labels") or {}).get(_RELEASE, "")
    if release and release != __version__:
        remedy = f"helm upgrade, or pip install kubealign=={release}: fields may differ"
        return warning(what, f"{VERSION} of release {release}; this SDK is {__version__}", remedy)
    return ok(what, f"{VERSION} of release {release or 'unknown'}")


async def _check_rights(api: KubernetesApi, namespace: str) -> CheckResult:
    what = f"your rights in {namespace}"
    rights = (*_REQUIRED, *_USEFUL)
    try:
        allowed = await asyncio.gather(*(_is_allowed(api, namespace, *right) for right in rights))
    except KubealignError as error:
        return warning(what, f"cannot be checked: {error}", "kubectl auth can-i --list")
    denied = [right for right, may in zip(rights, allowed, strict=True) if not may]
    if not denied:
        return ok(what, "all that the commands need")
    detail = "you may not " + ", ".join(_describe_right(*right) for right in denied)
    remedy = f"request a RoleBinding in {namespace} to the ClusterRole edit (or view, for read access)"
    result = missing if any(right in _REQUIRED for right in denied) else warning
    return result(what, detail, remedy)


async def _is_allowed(
    api: KubernetesApi, namespace: str, verb: str, group: str, resource: str, subresource: str
) -> bool:
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    review = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((review.get("status") or {}).get("allowed"))


def _describe_right(verb: str, group: str, resource: str, subresource: str) -> str:
    return f"{verb} {resource}{f'/{subresource}' if subresource else ''}"


async def _check_platform(api: KubernetesApi) -> Sequence[CheckResult]:
    """Check operator, Redis and dashboard."""
    try:
        workloads = [
            *await _list_workloads(api, "deployments"),
            *await _list_workloads(api, "statefulsets"),
        ]
    except KubealignError as error:
        remedy = "ask the cluster's administrator whether they run: you have no right to list them"
        return [warning("operator, Redis, dashboard", str(error), remedy)]
    by_component: dict[str, Any] = {
        item["metadata"].get("labels", {}).get(_COMPONENT, ""): item for item in workloads
    }
    return [
        _check_workload("operator", by_component.get("operator"), missing, "nobody runs jobs", _INSTALL),
        _check_workload(
            "Redis",
            by_component.get("redis"),
            warning,
            "not installed by the chart: jobs run without metrics unless another one is configured",
            "redis.embedded.enabled or redis.external in the chart's values",
        ),
        _check_workload(
            "dashboard",
            by_component.get("dashboard"),
            warning,
            "not installed: metrics and samples cannot be read from outside",
            "dashboard.enabled=true in the chart's values",
        ),
    ]


async def _list_workloads(api: KubernetesApi, plural: str) -> Sequence[Any]:
    query = {"labelSelector": _PART_OF}
    try:
        response = await api.list(f"/apis/apps/v1/{plural}", query)
    except Forbidden:
        response = await api.list(f"/apis/apps/v1/namespaces/{_USUAL_NAMESPACE}/{plural}", query)
    return list(response.get("items") or [])


def _check_workload(what: str, item: Any, tell: Any, absent: str, remedy: str) -> CheckResult:
    if item is None:
        absent_result: CheckResult = tell(what, absent, remedy)
        return absent_result
    name = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
    replicas = (item.get("spec") or {}).get("replicas", 1)
    ready = (item.get("status") or {}).get("readyReplicas") or 0
    if ready == 0:
        namespace = item["metadata"]["namespace"]
        not_ready: CheckResult = tell(
            what,
            f"{name}: none of {replicas} is ready",
            f"kubectl get pods -n {namespace}, and describe them",
        )
        return not_ready
    return ok(what, f"{name}: {ready} of {replicas} ready")


async def _check_storage(api: KubernetesApi) -> CheckResult:
    what = "storage"
    remedy = "create a PersistentVolumeClaim that all pods of a job can write, for checkpoint.volume"
    try:
        classes = (await api.list("/apis/storage.k8s.io/v1/storageclasses")).get("items") or []
    except KubealignError as error:
        return warning(what, f"cannot be listed: {error}", remedy)
    if not classes:
        return warning(what, "no StorageClass", remedy)
    default = [
        item["metadata"]["name"]
        for item in classes
        if (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    names = ", ".join(sorted(item["metadata"]["name"] for item in classes))
    return ok(what, f"StorageClass {names}" + (f"; {default[0]} is the default" if default else ""))
