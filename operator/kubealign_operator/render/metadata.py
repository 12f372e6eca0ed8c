"""metadata of a job's objects: labels and owner."""

from typing import Any

from kubealign.spec.job import API_VERSION, KIND
from kubealign_operator.render import names
from kubealign_operator.render.scene import Scene


def object_labels(job: str, uid: str) -> dict[str, str]:
    """What everything that belongs to a job is found by."""
    return {
        names.MANAGED_BY: names.KUBEALIGN,
        names.APP: names.KUBEALIGN,
        names.JOB_LABEL: job,
        names.UID_LABEL: uid,
    }


def object_metadata(scene: Scene, name: str) -> dict[str, Any]:
    """Deleting the job deletes the object; nothing waits for that."""
    return {
        "name": name,
        "namespace": scene.namespace,
        "labels": object_labels(scene.name, scene.uid),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": scene.name,
                "uid": scene.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
