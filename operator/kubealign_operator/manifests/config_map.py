"""The ConfigMap from which the processes read their job."""

from typing import Any

from kubealign.spec.job import Metadata
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import object_metadata

DOCUMENT_KEY = "job.json"


def config_map(context: RenderContext) -> dict[str, Any]:
    """Build the ConfigMap. It is immutable: later changes (replicas, suspend) are handled by the operator."""
    metadata = Metadata(name=context.name, namespace=context.namespace, labels=context.job.metadata.labels)
    job = context.job.model_copy(update={"metadata": metadata})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(context, names.config_map(context.name)),
        "immutable": True,
        "data": {DOCUMENT_KEY: job.model_dump_json(by_alias=True)},
    }
