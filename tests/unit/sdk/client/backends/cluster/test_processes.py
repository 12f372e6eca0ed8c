"""Process records derived from pods."""

from typing import Any

import pytest

from kubealign.client.backends.cluster.processes import to_process_records
from kubealign.client.records import ProcessState

Json = dict[str, Any]

MAIN: Json = {"name": "main", "resources": {"limits": {"memory": "2Gi"}}}


def pod(process: str, state: Json | None = None, *, ready: bool = False, **status: Any) -> Json:
    role = "driver" if process == "prepare" else process.split("-")[0]
    labels = {"kubealign.dev/process": process, "kubealign.dev/role": role, "kubealign.dev/attempt": "2"}
    main = [] if state is None else [{"name": "main", "state": state}]
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": {"name": f"one-{process}-2", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [MAIN]},
        "status": {"containerStatuses": main, "conditions": conditions, **status},
    }


def ended(code: int, **how: Any) -> Json:
    return {"terminated": {"exitCode": code, "startedAt": "2026-01-01T00:00:00Z", **how}}


RUNNING: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
UNSCHEDULED: Json = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]
}
GATED: Json = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
PULL: Json = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


@pytest.mark.parametrize(
    ("state", "status", "over", "expected", "words"),
    [
        (RUNNING, {"ready": True}, False, ProcessState.READY, ""),
        (RUNNING, {}, False, ProcessState.STARTING, "not ready yet"),
        ({"waiting": {"reason": "ContainerCreating"}}, {}, False, ProcessState.STARTING, "node n1"),
        (PULL, {}, False, ProcessState.WAITING, "cannot get its image: no such image"),
        (None, UNSCHEDULED, False, ProcessState.WAITING, "fits on no node: 0/3"),
        (None, GATED, False, ProcessState.WAITING, "waits until its queue admits it"),
        (ended(0), {}, False, ProcessState.FINISHED, ""),
        (ended(3, message="it broke"), {}, False, ProcessState.RESTARTING, "ended with code 3: it broke"),
        (ended(3, message="it broke"), {}, True, ProcessState.FAILED, "it broke"),
        (ended(78, message="no\ncolumn"), {}, False, ProcessState.FAILED, "no\ncolumn"),
        (ended(78), {}, False, ProcessState.FAILED, "a permanent failure without a message"),
        (ended(139), {}, False, ProcessState.RESTARTING, "SIGSEGV"),
        (
            ended(137, reason="OOMKilled"),
            {},
            False,
            ProcessState.RESTARTING,
            "than its limit of 2Gi",
        ),
        (ended(143), {}, True, ProcessState.STOPPED, "with its job"),
        (ended(137), {"reason": "DeadlineExceeded"}, True, ProcessState.STOPPED, "with its job"),
        (
            None,
            {"phase": "Failed", "reason": "Evicted", "message": "disk"},
            False,
            ProcessState.RESTARTING,
            "was evicted by its node: disk",
        ),
    ],
)
def test_process_state_and_reason(
    state: Json | None, status: Json, over: bool, expected: ProcessState, words: str
) -> None:
    [records] = to_process_records(
        [pod("trainer-0", state, **status)], {}, 0.0, finished=over, suspended=False
    )
    assert records.state is expected
    assert words in records.message if words else records.message == ""


def test_names_roles_order_and_heartbeats() -> None:
    pods = [pod(name, RUNNING) for name in ("nats", "rollout-10", "rollout-2", "prepare", "driver")]
    stranger: Json = {"metadata": {"name": "stranger"}, "spec": {}, "status": {}}
    says = {"driver": {"time": 90.0, "step": 3}, "nats": {"time": "?"}}
    records = to_process_records([*pods, stranger], says, 100.0, finished=False, suspended=False)
    assert [record.name for record in records] == ["driver", "rollout-2", "rollout-10", "prepare", "nats"]
    assert [record.role for record in records] == ["driver", "rollout", "rollout", "prepare", "nats"]
    assert records[0].says == {"step": 3} and records[0].silent_seconds == 10.0
    assert records[0].restarts == 2 and records[0].where == "one-driver-2"
    assert records[-1].silent_seconds is None and records[-1].says == {}


def test_terminating_pod_restarts_unless_the_job_is_suspended() -> None:
    leaving = pod("rollout-0", RUNNING, ready=True)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    [replacement] = to_process_records([leaving], {}, 0.0, finished=False, suspended=False)
    [stopped] = to_process_records([leaving], {}, 0.0, finished=False, suspended=True)
    assert (replacement.state, stopped.state) == (ProcessState.RESTARTING, ProcessState.STOPPED)


def test_only_the_newest_pod_of_a_process_is_listed() -> None:
    newest, kept = pod("trainer-0", RUNNING, ready=True), pod("trainer-0", ended(1))
    kept["metadata"]["labels"]["kubealign.dev/attempt"] = "1"
    [record] = to_process_records([newest, kept], {}, 0.0, finished=False, suspended=False)
    assert (record.state, record.restarts) == (ProcessState.READY, 2)
