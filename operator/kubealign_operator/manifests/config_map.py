"""The ConfigMap from which the processes read their job."""

from typing import Any

from kubealign.spec.job import Metadata
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import object_metadata

DOCUMENT_KEY = "job.json"


def config_map(context: RenderContext) -> dict[str, Any]:
    """Build the ConfigMap of the current generation.

    It is immutable: the operator handles later changes (replicas, suspend), and a resume after a change of a
    field that the processes read makes the next generation.
    """
    metadata = Metadata(name=context.name, namespace=context.namespace, labels=context.job.metadata.labels)
    job = context.job.model_copy(update={"metadata": metadata})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(context, names.config_map(context.name, context.document_generation)),
        "immutable": True,
        "data": {DOCUMENT_KEY: job.model_dump_json(by_alias=True)},
    }
