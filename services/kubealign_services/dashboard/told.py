"""Serializers from the client's records to the JSON of the API."""

from collections.abc import Iterable
from typing import Any

from kubealign.client.records import JobPage, JobRecord, ProcessRecord
from kubealign.read_model import Sample, StepMetrics
from kubealign.spec.job import API_VERSION, KIND
from kubealign_services.dashboard.wire import finite


def resource(record: JobRecord) -> dict[str, Any]:
    """Return the job with apiVersion and kind, which the items of a list may lack."""
    return {"apiVersion": API_VERSION, "kind": KIND, **record.resource}


def page(held: JobPage, before: int | None) -> dict[str, Any]:
    """Return a list of jobs.

    Args:
        before: Number of jobs on the previous pages, if known.
    """
    metadata: dict[str, Any] = {"continue": held.next, "resourceVersion": held.resource_version}
    if held.total is not None:
        metadata["total"] = held.total
        if before is not None:
            metadata["remainingItemCount"] = max(0, held.total - before - len(held.jobs))
    return {
        "apiVersion": API_VERSION,
        "kind": f"{KIND}List",
        "metadata": metadata,
        "items": [resource(record) for record in held.jobs],
    }


def step(held: StepMetrics) -> dict[str, Any]:
    return {
        "entry": held.entry,
        "step": held.step,
        "fence": held.fence,
        "values": {name: finite(value) for name, value in held.values.items()},
    }


def sample(held: Sample, *, tokens: bool = True) -> dict[str, Any]:
    """Return a sample.

    Args:
        tokens: Include tokens and their values.
    """
    document: dict[str, Any] = {
        "entry": held.entry,
        "step": held.step,
        "prompt": held.prompt,
        "response": held.response,
        "reward": finite(held.reward),
        "rewards": {name: finite(value) for name, value in held.rewards.items()},
        "weightVersion": held.weight_version,
        "truncated": held.truncated,
        "groupId": held.group_id,
        "purpose": held.purpose,
    }
    if tokens:
        document["tokens"] = list(held.tokens)
        document["tokenValues"] = {
            name: [finite(value) for value in values] for name, values in held.token_values.items()
        }
    return document


def processes(held: Iterable[ProcessRecord]) -> list[dict[str, Any]]:
    return [
        {
            "name": process.name,
            "role": process.role,
            "state": str(process.state),
            "restarts": process.restarts,
            "message": process.message,
            "started": None if process.started is None else process.started.isoformat(),
            "says": dict(process.says),
            "silentSeconds": finite(process.silent_seconds),
            "where": process.where,
        }
        for process in held
    ]
