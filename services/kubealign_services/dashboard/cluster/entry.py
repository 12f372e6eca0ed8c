"""A job as it is remembered: its document as JSON, and beside it what jobs are found and sorted by.

Ten thousand documents as dictionaries would take more memory than the dashboard may have, and a page shows
fifty: they are read when they are shown.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import JobRecord, JobRef

Json = dict[str, Any]
#: A place in an order: the value, then namespace and name, so that no two jobs share one.
Place = tuple[Any, str, str]

#: What nobody reads here, and half of a document's size.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Entry:
    """`version` is the resourceVersion; of one kind, the greater one is the newer."""

    ref: JobRef
    version: int
    uid: str
    text: bytes
    labels: Mapping[str, str]
    created: str
    phase: str
    algorithm: str
    #: Before the first step: -1 and minus infinity, so that these jobs come before all others.
    step: int
    reward: float

    @property
    def record(self) -> JobRecord:
        """Read anew each time: nobody else holds it."""
        return JobRecord(json.loads(self.text))

    def place(self, order: str) -> Place:
        """`order` is one of ORDERS."""
        value = self.ref.name if order == "name" else getattr(self, order)
        return value, self.ref.namespace, self.ref.name


ORDERS = ("name", "created", "phase", "step", "reward")


def entry(item: Json) -> Entry:
    """Of an object as the API server sends it."""
    document = without_noise(item)
    metadata = document["metadata"]
    spec, status = document.get("spec") or {}, document.get("status") or {}
    return Entry(
        ref=JobRef(metadata["namespace"], metadata["name"]),
        version=version(metadata),
        uid=str(metadata["uid"]),
        text=json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(),
        labels=metadata.get("labels") or {},
        created=str(metadata.get("creationTimestamp") or ""),
        phase=str(status.get("phase") or ""),
        algorithm=next(iter(spec.get("algorithm") or {}), ""),
        step=int(_number(status.get("step"), -1)),
        reward=_number(status.get("reward"), -math.inf),
    )


def without_noise(item: Mapping[str, Any]) -> Json:
    """Without who last wrote which field."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        kept = {key: text for key, text in metadata["annotations"].items() if key != _LAST_APPLIED}
        metadata["annotations"] = kept
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        **{key: value for key, value in item.items() if key != "metadata"},
        "metadata": metadata,
    }


def version(metadata: Mapping[str, Any]) -> int:
    """The resourceVersion as a number; 0 where it is none."""
    try:
        return int(metadata.get("resourceVersion") or 0)
    except ValueError:
        return 0


def _number(held: Any, otherwise: float) -> float:
    if isinstance(held, bool) or not isinstance(held, int | float) or not math.isfinite(held):
        return otherwise
    return held
