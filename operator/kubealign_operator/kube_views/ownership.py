"""The job that owns an object, by the object's controller reference and never by its labels."""

from collections.abc import Mapping
from typing import Any

from kubealign.spec.job import API_VERSION, KIND
from kubealign_operator.kube_views.lenient_json import items, text

_GROUP = API_VERSION.partition("/")[0]


def owner_uid(metadata: Mapping[str, Any]) -> str | None:
    """Return the uid of the AlignmentJob that controls an object, or None."""
    for owner in items(metadata.get("ownerReferences")):
        # The version may be another one: a reference is not rewritten when the job's version changes.
        group, _, version = text(owner.get("apiVersion")).rpartition("/")
        if owner.get("controller") is True and version and (group, owner.get("kind")) == (_GROUP, KIND):
            return text(owner.get("uid")) or None
    return None
