"""Serializers from the client's records to the JSON of the API."""

from collections.abc import Iterable
from typing import Any

from kubealign.client.records import JobPage, JobRecord, ProcessRecord
from kubealign.human_labels import HumanLabel, LabelledResponse
from kubealign.read_model import SampleRecord, StepMetrics
from kubealign.spec.job import API_VERSION, KIND
from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.web.json_response import finite


def job_document(record: JobRecord) -> dict[str, Any]:
    """Return the job with apiVersion and kind, which the items of a list may lack."""
    return {"apiVersion": API_VERSION, "kind": KIND, **record.resource}


def job_list(jobs: JobPage, jobs_before: int | None) -> dict[str, Any]:
    """Return a list of jobs.

    Args:
        jobs_before: Number of jobs on the previous pages, if known.
    """
    metadata: dict[str, Any] = {"continue": jobs.next, "resourceVersion": jobs.resource_version}
    if jobs.total is not None:
        metadata["total"] = jobs.total
        if jobs_before is not None:
            metadata["remainingItemCount"] = max(0, jobs.total - jobs_before - len(jobs.jobs))
    return {
        "apiVersion": API_VERSION,
        "kind": f"{KIND}List",
        "metadata": metadata,
        "items": [job_document(record) for record in jobs.jobs],
    }


def step_metrics(metrics: StepMetrics) -> dict[str, Any]:
    return {
        "entry": metrics.entry,
        "step": metrics.step,
        "fence": metrics.fence,
        "values": {name: finite(value) for name, value in metrics.values.items()},
    }


def sample(record: SampleRecord, *, tokens: bool = True) -> dict[str, Any]:
    """Return a sample.

    Args:
        tokens: Include tokens and their values.
    """
    document: dict[str, Any] = {
        "entry": record.entry,
        "step": record.step,
        "prompt": record.prompt,
        "response": record.response,
        "reward": finite(record.reward),
        "rewards": {name: finite(value) for name, value in record.rewards.items()},
        "explanations": record.explanations,
        "weightVersion": record.weight_version,
        "truncated": record.truncated,
        "groupId": record.group_id,
        "purpose": record.purpose,
    }
    if tokens:
        document["tokens"] = list(record.tokens)
        document["tokenValues"] = {
            name: [finite(value) for value in values] for name, values in record.token_values.items()
        }
    return document


def validation_sample(record: ValidationRecord) -> dict[str, Any]:
    return {
        "row": record.row,
        "set": record.set_name,
        "prompt": record.prompt,
        "response": record.response,
        "scores": {name: finite(value) for name, value in record.scores.items()},
        "explanations": record.explanations,
        "truncated": record.truncated,
        "shortened": record.is_shortened,
    }


def human_label(label: HumanLabel) -> dict[str, Any]:
    return {
        "subject": label.subject,
        "verdict": label.verdict,
        "reason": label.reason,
        "author": label.author,
        "time": label.time,
        "promptId": label.prompt_id,
        "prompt": label.prompt,
        "left": _labelled_response(label.left),
        "right": None if label.right is None else _labelled_response(label.right),
    }


def _labelled_response(response: LabelledResponse) -> dict[str, Any]:
    return {
        "namespace": response.namespace,
        "name": response.job,
        "step": response.step,
        "response": response.response,
    }


def process_items(records: Iterable[ProcessRecord]) -> list[dict[str, Any]]:
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
        for process in records
    ]
