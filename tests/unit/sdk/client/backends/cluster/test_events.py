"""Kubernetes events of a job and its pods."""

from typing import Any

from kubealign.client.backends.cluster.events import select_pod_events, to_job_events
from kubealign.client.records import JobRecord

SPEC = {
    "maxSteps": 1,
    "algorithm": {"sft": {}},
    "policy": {"model": {"volume": {"claimName": "m", "path": "b"}}},
    "data": {"demonstrations": {"source": {"volume": {"claimName": "d", "path": "t.jsonl"}}}},
    "checkpoint": {"volume": {"claimName": "r"}},
}
JOB = JobRecord(
    {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "one", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": SPEC,
    }
)


def event(pod: str, at: str, **more: Any) -> dict[str, Any]:
    return {
        "regarding": {"kind": "Pod", "name": pod},
        "eventTime": f"2026-01-01T00:00:{at}Z",
        "reason": "Scheduled",
        "note": "it was",
        **more,
    }


def test_events_of_deleted_pods_match_by_name() -> None:
    items = [event(f"one-{name}", "01") for name in ("driver", "trainer-0", "nats", "prepare", "rollout-12")]
    strange = [event(name, "01") for name in ("one", "one-driver-2", "one-two-driver", "two-driver", "")]
    assert select_pod_events([*items, *strange], JOB) == items
    # The job was created by a newer kubealign version with an unknown spec.
    newer = JobRecord({**JOB.resource, "spec": {**SPEC, "algorithm": {"tomorrow": {}}}})
    assert select_pod_events([*items, *strange], newer) == items


def test_events_are_ordered_counted_and_limited_to_this_job() -> None:
    repeated = {"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:09Z"}, "type": "Warning"}
    old = event("one-driver", "05", eventTime="2025-12-31T23:59:59Z")
    items = [
        event("one-driver", "05", **repeated),
        event("one-nats", "07.5"),
        old,
        {"note": "without a time"},
    ]
    selected = to_job_events(items, "one", JOB.created)
    assert [(event.message, event.count, event.type) for event in selected] == [
        ("nats: it was", 1, "Normal"),
        ("driver: it was", 3, "Warning"),
    ]
