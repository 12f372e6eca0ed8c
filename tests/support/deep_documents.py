"""AlignmentJobs that are nested deeper than Python's JSON parser reads, as the text of API objects."""

import json
from typing import Any


def nested(levels: int) -> str:
    """Return the text of this many objects within each other."""
    return '{"a":' * levels + "1" + "}" * levels


def with_deep_affinity(job: dict[str, Any], levels: int) -> str:
    """Return the text of the job with a node affinity of this many levels, as the API server returns it.

    `managedFields` is nested as deep.
    """
    document = {
        **job,
        "metadata": {**job["metadata"], "managedFields": [{"fieldsV1": "FIELDS"}]},
        "spec": {**job["spec"], "podTemplate": {"spec": {"affinity": {"nodeAffinity": "AFFINITY"}}}},
    }
    text = json.dumps(document)
    return text.replace('"AFFINITY"', nested(levels)).replace('"FIELDS"', nested(levels))
