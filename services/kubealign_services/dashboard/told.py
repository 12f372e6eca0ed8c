"""What a site holds, in the words of the API."""

from collections.abc import Iterable
from typing import Any

from kubealign.client.records import JobPage, JobRecord, ProcessRecord
from kubealign.read_model import Sample, StepMetrics
from kubealign.spec.job import API_VERSION, KIND
from kubealign_services.dashboard.wire import finite


def resource(record: JobRecord) -> dict[str, Any]:
    """With apiVersion and kind, which a list's items may lack."""
    return {"apiVersion": API_VERSION, "kind": KIND, **record.resource}


def page(held: JobPage, before: int | None) -> dict[str, Any]:
    """A list. `before`: how many jobs stood on the pages before, where that is known."""
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
    """`tokens`: with what is known of each."""
    told: dict[str, Any] = {
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
        told["tokens"] = list(held.tokens)
        told["tokenValues"] = {
            name: [finite(value) for value in values] for name, values in held.token_values.items()
        }
    return told


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
