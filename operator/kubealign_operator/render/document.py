"""The job as its processes read it."""

from typing import Any

from kubealign.spec.job import Metadata
from kubealign_operator.render import names
from kubealign_operator.render.metadata import object_metadata
from kubealign_operator.render.scene import Scene

KEY = "job.json"


def document(scene: Scene) -> dict[str, Any]:
    """Immutable: what is changed later (replicas, suspend) is the operator's to act on."""
    metadata = Metadata(name=scene.name, namespace=scene.namespace, labels=scene.job.metadata.labels)
    job = scene.job.model_copy(update={"metadata": metadata})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(scene, names.document(scene.name)),
        "immutable": True,
        "data": {KEY: job.model_dump_json(by_alias=True)},
    }
