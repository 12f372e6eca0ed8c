"""The ConfigMap from which the processes read their job."""

from typing import Any

from kubealign.spec.job import Metadata
from kubealign_operator.render import names
from kubealign_operator.render.metadata import object_metadata
from kubealign_operator.render.scene import Scene

KEY = "job.json"


def document(scene: Scene) -> dict[str, Any]:
    """Build the ConfigMap. It is immutable: later changes (replicas, suspend) are handled by the operator."""
    metadata = Metadata(name=scene.name, namespace=scene.namespace, labels=scene.job.metadata.labels)
    job = scene.job.model_copy(update={"metadata": metadata})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(scene, names.document(scene.name)),
        "immutable": True,
        "data": {KEY: job.model_dump_json(by_alias=True)},
    }
