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
    processes = ("driver", "trainer-0", "nats", "prepare", "rollout-12")
    # An operator of an earlier version named pods without the attempt.
    items = [event(f"one-{name}{attempt}", "01") for name in processes for attempt in ("-0", "-11", "")]
    strange = [
        event(name, "01")
        for name in ("one", "one-driver-2-0", "one-two-driver-0", "two-driver-0", "one-7", "")
    ]
    messages = [item.message for item in to_job_events(items, JOB)]
    assert messages == [f"{name}: it was" for name in processes for _ in range(3)]
    assert select_pod_events([*items, *strange], JOB) == items
    # The job was created by a newer kubealign version with an unknown spec.
    newer = JobRecord({**JOB.resource, "spec": {**SPEC, "algorithm": {"tomorrow": {}}}})
    assert select_pod_events([*items, *strange], newer) == items


def test_events_are_ordered_counted_and_limited_to_this_job() -> None:
    repeated = {"series": {"count": 3, "lastObservedTime": "2026-01-01T00:00:09Z"}, "type": "Warning"}
    old = event("one-driver-1", "05", eventTime="2025-12-31T23:59:59Z")
    items = [
        event("one-driver-1", "05", **repeated),
        event("one-nats-0", "07.5"),
        old,
        {"note": "without a time"},
    ]
    selected = to_job_events(items, JOB)
    assert [(event.message, event.count, event.type) for event in selected] == [
        ("nats: it was", 1, "Normal"),
        ("driver: it was", 3, "Warning"),
    ]


def test_the_operators_events_about_pods_are_left_out() -> None:
    items = [event("one-driver-0", "01", reportingController="kubealign.dev/operator")]
    assert select_pod_events(items, JOB) == []
