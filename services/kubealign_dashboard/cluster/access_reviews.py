"""Authorization by the API server, through SubjectAccessReview."""

from collections.abc import Hashable

from kubealign.errors import Forbidden, Unauthenticated, Unavailable
from kubealign.spec.job import GROUP
from kubealign_dashboard.access import Caller
from kubealign_dashboard.cluster.token_reviews import ClusterCaller, Json, ReviewApi
from kubealign_dashboard.cluster.ttl_cache import TTLCache

ACCESS_REVIEWS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

#: The path whose right scrapers of a cluster have: `nonResourceURLs: [/metrics]`.
METRICS_PATH = "/metrics"

# A granted or revoked right takes effect within this time.
_TTL_SECONDS = 5.0
_MAX_CACHED = 16384
_GROUPS = {"alignmentjobs": GROUP, "events": "events.k8s.io", "pods": ""}


class AccessReviews:
    """Reviews the rights of callers, with the dashboard's own rights."""

    def __init__(self, api: ReviewApi) -> None:
        self._api = api
        self._cache: TTLCache[Hashable, bool] = TTLCache(_MAX_CACHED)

    async def authorize(
        self, caller: Caller, verb: str, namespace: str | None, name: str, resource: str
    ) -> None:
        """Verify a right, see Access.authorize.

        Raises:
            Forbidden: The caller does not have it.
            Unavailable: It cannot be reviewed.
        """
        if not await self.is_allowed(caller, verb, namespace, name, resource):
            target = f"{resource} {name}" if name else resource
            scope = f"namespace {namespace}" if namespace else "all namespaces together"
            raise Forbidden(
                f"{caller.name} may not {verb} {target} in {scope}: "
                "ask its administrator for a role that allows it"
            )

    async def authorize_metrics(self, caller: Caller) -> None:
        """Verify the right to get the path /metrics, which scrapers have in Kubernetes.

        Raises:
            Forbidden: The caller does not have it.
            Unavailable: It cannot be reviewed.
        """
        spec = _caller_spec(caller) | {"nonResourceAttributes": {"verb": "get", "path": METRICS_PATH}}
        if not await self._cache.get(_cache_key(spec, METRICS_PATH), lambda: self._review(spec)):
            raise Forbidden(
                f"{caller.name} may not get {METRICS_PATH}: bind it to a ClusterRole with "
                f"nonResourceURLs [{METRICS_PATH}] and verbs [get]"
            )

    async def is_allowed(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> bool:
        """Return True when the caller has the right.

        Raises:
            Unavailable: It cannot be reviewed.
        """
        spec = _review_spec(caller, verb, namespace, name, resource)
        key = _cache_key(spec, (verb, namespace, name, resource))
        return await self._cache.get(key, lambda: self._review(spec))

    async def _review(self, spec: Json) -> tuple[bool, float]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        try:
            answer = await self._api.create(ACCESS_REVIEWS_PATH, review)
        except (Forbidden, Unauthenticated) as error:
            # The error concerns the dashboard itself, not the caller.
            raise Unavailable(f"the dashboard's own account may not review rights: {error}") from error
        status = answer.get("status") or {}
        return bool(status.get("allowed")) and not status.get("denied"), _TTL_SECONDS


def _review_spec(caller: Caller, verb: str, namespace: str | None, name: str, resource: str) -> Json:
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": _GROUPS[plural],
        "resource": plural,
        "subresource": subresource,
        # The empty namespace means all namespaces.
        "namespace": namespace or "",
        "name": name,
    }
    return _caller_spec(caller) | {"resourceAttributes": attributes}


def _caller_spec(caller: Caller) -> Json:
    spec: Json = {"user": caller.name, "groups": list(caller.groups)}
    if isinstance(caller, ClusterCaller):
        spec["uid"] = caller.uid
        spec["extra"] = {field: list(values) for field, values in caller.extra.items()}
    return spec


def _cache_key(spec: Json, request: Hashable) -> Hashable:
    extra = spec.get("extra", {})
    return (
        spec["user"],
        spec.get("uid"),
        tuple(spec["groups"]),
        tuple(sorted((field, tuple(values)) for field, values in extra.items())),
        request,
    )
