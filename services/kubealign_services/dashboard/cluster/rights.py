"""Who may do what: the API server says, by SubjectAccessReview."""

from collections.abc import Hashable

from kubealign.client.errors import Forbidden, Unauthenticated, Unavailable
from kubealign.spec.job import GROUP
from kubealign_services.dashboard.access import Caller
from kubealign_services.dashboard.cluster.remembered import Remembered
from kubealign_services.dashboard.cluster.tokens import ClusterCaller, Creates, Json

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

# A right that is given or taken counts after so long at the latest.
_SECONDS = 5.0
_MOST = 16384
_GROUPS = {"alignmentjobs": GROUP, "events": "events.k8s.io", "pods": ""}


class Rights:
    """Asks with the dashboard's own rights about those of others."""

    def __init__(self, api: Creates) -> None:
        self._api = api
        self._known: Remembered[Hashable, bool] = Remembered(_MOST)

    async def allow(self, caller: Caller, verb: str, namespace: str | None, name: str, resource: str) -> None:
        """Raises Forbidden, Unavailable; see Access.allow."""
        if not await self.may(caller, verb, namespace, name, resource):
            what = f"{resource} {name}" if name else resource
            where = f"namespace {namespace}" if namespace else "all namespaces together"
            raise Forbidden(
                f"{caller.name} may not {verb} {what} in {where}: "
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
        """Raises Unavailable."""
        asked = _asked(caller, verb, namespace, name, resource)
        extra = asked.get("extra", {})
        key = (
            caller.name,
            asked.get("uid"),
            caller.groups,
            tuple(sorted((field, tuple(values)) for field, values in extra.items())),
            (verb, namespace, name, resource),
        )
        return await self._known.get(key, lambda: self._reviewed(asked))

    async def _reviewed(self, asked: Json) -> tuple[bool, float]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": asked,
        }
        try:
            answer = await self._api.create(REVIEWS, review)
        except (Forbidden, Unauthenticated) as error:
            # Of the dashboard itself, not of the caller.
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
        # Kubernetes' word for all of them is the empty one.
        "namespace": namespace or "",
        "name": name,
    }
    asked: Json = {"user": caller.name, "groups": list(caller.groups), "resourceAttributes": attributes}
    if isinstance(caller, ClusterCaller):
        asked["uid"] = caller.uid
        asked["extra"] = {field: list(values) for field, values in caller.extra.items()}
    return asked
