"""Metadata of a job's objects: labels and owner reference."""

from typing import Any

from kubealign.spec.job import API_VERSION, KIND
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext


def object_labels(job: str, uid: str) -> dict[str, str]:
    """Return the labels by which every object of a job is selected."""
    return {
        names.MANAGED_BY: names.KUBEALIGN,
        names.APP: names.KUBEALIGN,
        names.JOB_LABEL: job,
        names.UID_LABEL: uid,
    }


def object_metadata(context: RenderContext, name: str) -> dict[str, Any]:
    """Return the metadata of an object. Deleting the job deletes the object without blocking the deletion."""
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": object_labels(context.name, context.uid),
        "ownerReferences": [owner_reference(context.name, context.uid)],
    }


def document_label(generation: int) -> dict[str, str]:
    """Return the label of pods that mount a later generation of the job's document than the first."""
    return {} if generation == 1 else {names.DOCUMENT_LABEL: str(generation)}


def owner_reference(job: str, uid: str) -> dict[str, Any]:
    """Return the reference by which an object names the job as its controller."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
