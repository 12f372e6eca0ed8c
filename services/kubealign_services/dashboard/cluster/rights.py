"""Authorization by the API server, through SubjectAccessReview."""

from collections.abc import Hashable

from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable
from kubealign.spec.job import GROUP
from kubealign_services.dashboard.access import Caller
from kubealign_services.dashboard.cluster.remembered import Remembered
from kubealign_services.dashboard.cluster.tokens import ClusterCaller, Creates, Json

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

# A granted or revoked right takes effect within this time.
_SECONDS = 5.0
_MOST = 16384
_GROUPS = {"alignmentjobs": GROUP, "events": "events.k8s.io", "pods": ""}


class Rights:
    """Reviews the rights of callers, with the dashboard's own rights."""

    def __init__(self, api: Creates) -> None:
        self._api = api
        self._known: Remembered[Hashable, bool] = Remembered(_MOST)

    async def allow(self, caller: Caller, verb: str, namespace: str | None, name: str, resource: str) -> None:
        """Verify a right, see Access.authorize.

        Raises:
            Forbidden: The caller does not have it.
            Unavailable: It cannot be reviewed.
        """
        if not await self.may(caller, verb, namespace, name, resource):
            target = f"{resource} {name}" if name else resource
            scope = f"namespace {namespace}" if namespace else "all namespaces together"
            raise Forbidden(
                f"{caller.name} may not {verb} {target} in {scope}: "
                "ask its administrator for a role that allows it"
            )

    async def may(
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
        spec = _asked(caller, verb, namespace, name, resource)
        extra = spec.get("extra", {})
        key = (
            caller.name,
            spec.get("uid"),
            caller.groups,
            tuple(sorted((field, tuple(values)) for field, values in extra.items())),
            (verb, namespace, name, resource),
        )
        return await self._known.get(key, lambda: self._reviewed(spec))

    async def _reviewed(self, spec: Json) -> tuple[bool, float]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        try:
            answer = await self._api.create(REVIEWS, review)
        except (Forbidden, Unauthenticated) as error:
            # The error concerns the dashboard itself, not the caller.
            raise Unavailable(f"the dashboard's own account may not review rights: {error}") from error
        status = answer.get("status") or {}
        return bool(status.get("allowed")) and not status.get("denied"), _SECONDS


def _asked(caller: Caller, verb: str, namespace: str | None, name: str, resource: str) -> Json:
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
    spec: Json = {"user": caller.name, "groups": list(caller.groups), "resourceAttributes": attributes}
    if isinstance(caller, ClusterCaller):
        spec["uid"] = caller.uid
        spec["extra"] = {field: list(values) for field, values in caller.extra.items()}
    return spec
