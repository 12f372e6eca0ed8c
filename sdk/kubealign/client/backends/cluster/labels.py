"""Labels of people as ConfigMaps: one for each author and subject, owned by the job.

Redis may evict what it holds, and the job's claim cannot be written from outside its pods. ConfigMaps are
durable, and are read and written with the caller's own rights.
"""

import hashlib
import json
from typing import Any

from kubealign.client.errors import Conflict
from kubealign.client.records import JobRecord
from kubealign.human_labels import HumanLabel, parse_label
from kubealign.kube.api import Json, KubernetesApi
from kubealign.kube.resources import CONFIG_MAPS
from kubealign.kube.watch import list_all
from kubealign.labels import FIELD_MANAGER, KUBEALIGN, LABELLED_JOB_LABEL, MANAGED_BY
from kubealign.spec.job import API_VERSION, KIND

_KEY = "label.json"


async def store_label(api: KubernetesApi, job: JobRecord, label: HumanLabel) -> None:
    """Create the author's label of the subject, or replace it."""
    digest = hashlib.sha256(f"{label.subject} {label.author}".encode()).hexdigest()[:20]
    name = f"{job.name}-label-{digest}"
    data = {_KEY: label.to_json().encode(errors="replace").decode()}
    document: Json = {
        "metadata": {
            "name": name,
            "labels": {MANAGED_BY: KUBEALIGN, LABELLED_JOB_LABEL: job.uid},
            "ownerReferences": [{"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}],
        },
        "data": data,
    }
    query = {"fieldManager": FIELD_MANAGER}
    try:
        await api.create(CONFIG_MAPS.collection_path(job.namespace), document, query)
    except Conflict:
        # The whole object: one that a deleted job of the same name has left gets the new owner.
        await api.merge_patch(CONFIG_MAPS.object_path(job.namespace, name), document, query)


async def list_labels(api: KubernetesApi, job: JobRecord) -> list[HumanLabel]:
    """Return the labels of a job in the order of their time; unreadable ones are left out."""
    query = {"labelSelector": f"{LABELLED_JOB_LABEL}={job.uid}"}
    items, _ = await list_all(api, CONFIG_MAPS.collection_path(job.namespace), query)
    labels = [label for item in items if (label := _parse_item(item)) is not None]
    return sorted(labels, key=lambda label: label.time)


def _parse_item(item: Json) -> HumanLabel | None:
    try:
        document: Any = json.loads((item.get("data") or {}).get(_KEY, ""))
    except ValueError:
        return None
    return parse_label(document) if isinstance(document, dict) else None
