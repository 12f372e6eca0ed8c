"""Invariants of every plan, for arbitrary observed states."""

import copy
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubealign.spec.status import AlignmentJobStatus, JobPhase
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.kueue_view import KueueView, PodPlacement, WorkloadView, workload_view
from kubealign_operator.kube_views.lenient_json import get_path
from kubealign_operator.kube_views.observed_job import (
    DependencyView,
    DriverProgress,
    ObservedState,
    StartingJob,
    VolumePath,
)
from kubealign_operator.kube_views.pod_view import pod_view
from kubealign_operator.planner.kept_pods import has_kept_log
from kubealign_operator.planner.plan import ReconcilePlan
from kubealign_operator.planner.planner import plan_reconcile
from kubealign_operator.planner.validation import InvalidJob, parse_job
from support.rendering.cluster import START, Cluster
from support.rendering.jobs import PLATFORM, QUEUE, UID, ppo, sft, two_ranks

Json = dict[str, Any]

_FINAL = ("Succeeded", "Failed")
_WIDE = {"max_examples": 40, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["Running", "Failed", "Succeeded", "trainer", "2026-03-01T12:00:00Z", "0001-01-01T00:00:00+09:00"]
    )
)
_garbage = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_times = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat()) | st.sampled_from(
    ["2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"]
)
_PROCESSES = [
    "nats", "prepare", "trainer-0", "trainer-1", "critic-0", "reward-helpful-0", "rollout-0", "rollout-9",
    "driver", "stranger",
]  # fmt: skip


def _status(terminated: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    state = st.one_of(
        st.fixed_dictionaries({"terminated": terminated}),
        st.fixed_dictionaries({"running": st.just({"startedAt": "2026-03-01T11:59:00Z"})}),
        st.fixed_dictionaries(
            {
                "waiting": st.fixed_dictionaries(
                    {
                        "reason": st.sampled_from(
                            ["ContainerCreating", "ImagePullBackOff", "CreateContainerConfigError", ""]
                        ),
                        "message": st.text(max_size=9),
                    }
                )
            }
        ),
        _garbage,
    )
    conditions = st.lists(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"]),
                "status": st.sampled_from(["True", "False", "Unknown"]),
                "reason": st.sampled_from(["Unschedulable", "SchedulingGated", "DeletionByTaintManager", ""]),
                "message": st.text(max_size=9),
            }
        ),
        max_size=3,
    )
    return st.fixed_dictionaries(
        {
            "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", 3]),
            "reason": st.sampled_from(["", "Evicted", "NodeLost"]),
            "conditions": conditions | _garbage,
            "containerStatuses": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["main", "sidecar"]), "state": state}),
                max_size=2,
            )
            | _garbage,
        }
    )


_terminated = st.fixed_dictionaries(
    {
        "exitCode": st.sampled_from([0, 1, 78, 137, 143, 255, -1]) | st.integers(),
        "reason": st.sampled_from(["Error", "OOMKilled"]),
        "message": st.text(max_size=20),
        "startedAt": _times,
        "finishedAt": _times,
    }
)


@st.composite
def _pods(draw: st.DrawFn, job: str) -> list[Json]:
    value = {}
    for process in draw(st.lists(st.sampled_from(_PROCESSES), max_size=8, unique=True)):
        metadata = {
            "name": f"{job}-{process}{draw(st.sampled_from(['', '-0', '-1']))}",
            "uid": f"uid-{process}",
            "creationTimestamp": draw(_times),
            "ownerReferences": [
                {
                    "apiVersion": draw(st.sampled_from(["kubealign.dev/v1alpha1"] * 4 + ["example.org/v1"])),
                    "kind": "AlignmentJob",
                    "uid": draw(st.sampled_from([UID, UID, UID, "another"])),
                    "controller": draw(st.sampled_from([True, True, True, False])),
                }
            ],
            "labels": {
                "kubealign.dev/job-uid": draw(st.sampled_from([UID, UID, UID, "another"])),
                "kubealign.dev/process": process,
                "kubealign.dev/group": process.rpartition("-")[0] or process,
                "kubealign.dev/attempt": draw(st.sampled_from(["0", "0", "1", "2", "x", "-3", "9" * 30])),
            },
        }
        if draw(st.booleans()):
            metadata["deletionTimestamp"] = draw(_times)
            metadata["deletionGracePeriodSeconds"] = draw(st.sampled_from([0, 30]))
            metadata["finalizers"] = draw(st.sampled_from([[], ["example.org/audit"]]))
        spec = {"nodeName": draw(st.sampled_from(["", "node-1"])), "containers": draw(_garbage)}
        value[process] = {"metadata": metadata, "spec": spec, "status": draw(_status(_terminated))}
    return [
        *value.values(),
        *draw(st.lists(st.dictionaries(st.text(max_size=8), _garbage, max_size=3), max_size=2)),
    ]


@st.composite
def _kueue(draw: st.DrawFn, job: str) -> KueueView:
    workloads = []
    for unit in draw(
        st.lists(st.sampled_from(["", "rollout-0", "rollout-2", "odd"]), max_size=3, unique=True)
    ):
        condition = st.fixed_dictionaries(
            {
                "type": st.sampled_from(["QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady"]),
                "status": st.sampled_from(["True", "True", "False", "Odd"]),
                "reason": st.sampled_from(["Preempted", "Deactivated", ""]) | _garbage,
                "message": st.text(max_size=9) | _garbage,
            }
        )
        assignment = st.fixed_dictionaries(
            {
                "name": st.sampled_from(["rollout", "trainer", "control"]),
                "count": st.sampled_from([0, 1, 2, 3, -1]) | _garbage,
                "flavors": st.just({"cpu": "default"}) | _garbage,
            }
        )
        workload = {
            "metadata": {
                "name": f"{job}-{unit}",
                "uid": f"workload-{unit}",
                "resourceVersion": "3",
                "labels": {"kubealign.dev/unit": unit} if unit else {},
                "ownerReferences": [
                    {
                        "apiVersion": "kubealign.dev/v1alpha1",
                        "kind": "AlignmentJob",
                        "uid": draw(st.sampled_from([UID, UID, "another"])),
                        "controller": True,
                    }
                ],
            },
            "spec": {"active": draw(st.sampled_from([True, True, False])), "podSets": draw(_garbage)},
            "status": {
                "conditions": draw(st.lists(condition, max_size=5) | _garbage),
                "admission": draw(
                    st.none()
                    | st.fixed_dictionaries({"podSetAssignments": st.lists(assignment, max_size=3)})
                    | _garbage
                ),
                "reclaimablePods": draw(st.just([{"name": "rollout", "count": 1}]) | _garbage),
                "admissionChecks": draw(_garbage),
            },
        }
        workloads.append(workload_view(workload))
    flavors = draw(st.sampled_from([{}, {"default": PodPlacement(node_selector={"pool": "a"})}]))
    return KueueView(tuple(workloads), flavors, {}, draw(st.sampled_from([{}, {"research": 5}])))


@st.composite
def _past(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 9)) == 0:
        return draw(_garbage)
    item: Json = {}
    if draw(st.booleans()):
        item["phase"] = draw(st.sampled_from([phase.value for phase in JobPhase] + ["Odd"]))
    parts: dict[str, st.SearchStrategy[Any]] = {
        "startTime": _times,
        "completionTime": _times,
        "activeSince": _times,
        "activeSeconds": st.floats(0, 1e7),
        "startTurn": st.fixed_dictionaries(
            {}, optional={"waitingSince": _times, "heldSince": _times, "endedAt": _times, "lost": st.text()}
        ),
        "restarts": st.integers(0, 11),
        "attempts": st.dictionaries(
            st.sampled_from(["trainer", "driver", "nats"]), st.integers(-1, 3), max_size=3
        ),
        "conditions": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["Prepared", "Ready", "Failed", "Suspended"]),
                    "status": st.sampled_from(["True", "False"]),
                    "reason": st.sampled_from(["DeadlineExceeded", "Succeeded"]),
                    "lastTransitionTime": _times,
                }
            ),
            max_size=4,
        ),
        "roles": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["trainer", "rollout"]), "replicas": st.just(2), "ready": st.just(2)}
            ),
            max_size=2,
        ),
        "step": st.integers(0, 10),
    }
    for name, strategy in parts.items():
        if draw(st.booleans()):
            item[name] = draw(strategy | _garbage)
    return item


_moments = st.none() | st.just(START) | st.datetimes(timezones=st.just(UTC))
_starting_jobs = st.builds(
    StartingJob,
    namespace=st.sampled_from(["team", "other"]),
    name=st.sampled_from(["a", "z"]),
    uid=st.just("u"),
    waiting_since=_moments,
    held_since=_moments,
)


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[ObservedState, datetime]:
    job = copy.deepcopy(
        draw(
            st.sampled_from(
                [
                    sft(),
                    two_ranks(),
                    ppo(),
                    sft(lifecycle={"activeDeadlineSeconds": 9, "ttlSecondsAfterFinished": 5}),
                ]
            )
        )
    )
    job["status"] = draw(_past())
    if draw(st.booleans()):
        job["metadata"]["labels"] = dict(QUEUE)
    if draw(st.booleans()):
        job["spec"]["suspend"] = draw(st.booleans())
    if draw(st.integers(0, 4)) == 0:
        position = draw(st.sampled_from([job, job["metadata"], job["spec"], job["spec"]["checkpoint"]]))
        position[draw(st.sampled_from([*position, "odd"]))] = draw(_garbage)
    name = str(get_path(job, "metadata", "name"))
    pods = tuple(pod_view(pod) for pod in draw(_pods(name)))
    views = st.sampled_from(
        [
            None,
            DependencyView("sft", "1"),
            DependencyView("sft", "1", phase="Failed"),
            DependencyView("sft", "1", phase="Succeeded", result=VolumePath("runs", "x" * 2000)),
            DependencyView("sft", "1", phase="Succeeded"),
        ]
    )
    observed = ObservedState(
        job=job,
        pods=pods,
        objects=draw(
            st.frozensets(st.sampled_from([("Secret", f"{name}-credentials"), ("Service", f"{name}-peers")]))
        ),
        create_errors=draw(
            st.dictionaries(st.sampled_from([f"{name}-trainer-0-0", f"{name}-peers"]), st.text(max_size=9))
        ),
        dependencies={"sft": draw(views)} if draw(st.booleans()) else {},
        progress=draw(
            st.none() | st.builds(DriverProgress, step=st.integers(0, 10), waiting_for=st.text(max_size=5))
        ),
        kueue=draw(_kueue(name)),
        starting_jobs=draw(st.just(()) | st.lists(_starting_jobs, min_size=1, max_size=3).map(tuple)),
    )
    return observed, draw(st.just(START) | st.datetimes(timezones=st.just(UTC)))


def _answer(observed: ObservedState, now: datetime) -> ReconcilePlan:
    """Plan for a platform on which jobs start one at a time if other jobs start."""
    is_ordered = bool(observed.starting_jobs)
    return plan_reconcile(observed, now, replace(PLATFORM, uses_kueue=True, start_one_at_a_time=is_ordered))


def _is_admitted(view: WorkloadView) -> bool:
    """Return True if Kueue has admitted the job as a whole."""
    states = {item.get("type"): item.get("status") for item in reversed(view.conditions)}
    blocked = "True" in (states.get("Evicted"), states.get("Finished"))
    is_own = view.owner_uid == UID and not view.unit
    return is_own and view.has_reservation and states.get("Admitted") == "True" and not blocked


@pytest.mark.slow
@settings(**_WIDE)
@given(_worlds(), st.none() | st.text(max_size=300) | _garbage)
def test_planning_never_raises_and_is_deterministic(
    world: tuple[ObservedState, datetime], retry: Any
) -> None:
    observed, now = world
    if retry is not None and isinstance(observed.job.get("metadata"), dict):
        metadata = {**observed.job["metadata"], "annotations": {"kubealign.dev/retry": retry}}
        observed = replace(observed, job={**observed.job, "metadata": metadata})
    before = repr(observed)
    rendered = _answer(observed, now)
    assert repr(observed) == before
    assert _answer(observed, now) == rendered
    assert AlignmentJobStatus.model_validate(json.loads(json.dumps(rendered.status, allow_nan=False)))
    json.dumps(rendered.create, allow_nan=False)
    assert rendered.requeue_after is None or rendered.requeue_after > 0


@settings(**_WIDE)
@given(_worlds())
def test_no_pod_is_created_under_a_taken_name_and_none_is_deleted_twice(
    world: tuple[ObservedState, datetime],
) -> None:
    observed, now = world
    # The worlds have jobs without a uid, too: no pod is theirs.
    uid = get_path(observed.job, "metadata", "uid") or None
    rendered = _answer(observed, now)
    created = [item["metadata"]["name"] for item in rendered.create if item["kind"] == "Pod"]
    assert not set(created) & {pod.name for pod in observed.pods}
    assert len(created) == len(set(created))
    leftovers = [pod for pod in observed.pods if pod_state.is_leftover(pod)]
    live = {
        pod.labels.get("kubealign.dev/process")
        for pod in observed.pods
        if pod.owner_uid == uid and pod not in leftovers and not has_kept_log(pod)
    }
    processes = [
        item["metadata"]["labels"]["kubealign.dev/process"]
        for item in rendered.create
        if item["kind"] == "Pod"
    ]
    assert len(processes) == len(set(processes))
    assert not live & set(processes), "two pods of one process may run"
    removed = [(item.name, item.uid) for item in (*rendered.delete, *rendered.stop)]
    assert len(removed) == len(set(removed))
    own = {(pod.name, pod.uid) for pod in observed.pods if pod.owner_uid == uid}
    assert set(removed) <= own
    # Pods that are kept for their logs are deleted where the job has no pods: in a queue, or suspended.
    assert not set(removed) & {(pod.name, pod.uid) for pod in leftovers}


@pytest.mark.slow
@settings(**_WIDE)
@given(_worlds())
def test_a_finished_job_creates_nothing_and_stays_finished(world: tuple[ObservedState, datetime]) -> None:
    observed, now = world
    phase = _answer(observed, now).status.get("phase")
    item = observed.job.get("status")
    if isinstance(item, dict) and item.get("phase") in _FINAL:
        assert phase == item["phase"]
    if phase in _FINAL:
        rendered = _answer(observed, now)
        assert rendered.create == () and rendered.credentials is None


@pytest.mark.slow
@settings(**_WIDE)
@given(_worlds())
def test_a_second_reconcile_of_the_same_state_changes_nothing(world: tuple[ObservedState, datetime]) -> None:
    observed, now = world
    first = _answer(observed, now)
    again = ObservedState(
        **{**{name: getattr(observed, name) for name in ObservedState.__dataclass_fields__},
           "job": {**observed.job, "status": first.status}}
    )  # fmt: skip
    second = _answer(again, now)
    assert second.status == first.status
    assert second.events == ()
    assert _answer(again, now).delete == second.delete


@settings(max_examples=100, deadline=None)
@given(_garbage)
def test_garbage_is_parsed_without_errors(garbage: Any) -> None:
    document = (
        garbage if isinstance(garbage, dict) else {"spec": garbage, "metadata": garbage, "status": garbage}
    )
    with pytest.raises(InvalidJob):
        parse_job(document)
    pod_view(document)


class _Story:
    """A job under events in any order, with a reconcile after each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def happen(self, what: str, whom: int) -> None:
        cluster = self.cluster
        pods = [name for name, pod in cluster.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        name = pods[whom % len(pods)] if pods else None
        alive = name is not None and cluster.pods[name]["status"]["phase"] in ("Pending", "Running")
        match what:
            case "serve":
                cluster.serve()
            case "nodes answer":
                cluster.finish_leaving()
            case "prepared" if cluster.name("prepare") in pods:
                cluster.end(cluster.name("prepare"), 0)
            case "crash" if name and alive:
                cluster.end(name, 1)
            case "delete" if name:
                cluster.delete(name)
            case "finalizer" if name:
                cluster.pods[name]["metadata"]["finalizers"] = ["example.org/audit"]
            case "vanish" if name:
                cluster.vanish(name)
            case "suspend":
                cluster.job["spec"]["suspend"] = not cluster.job["spec"].get("suspend", False)
            case "scale" if "rollout" in cluster.job["spec"]:
                cluster.job["spec"]["rollout"] = {"replicas": 1 + whom % 4, "minReplicas": 1}
            case "time":
                cluster.pass_time(whom)
            case "finalized":
                cluster.remove_finalizers()
            case "object":
                cluster.objects.discard(("Service", cluster.name("peers")))
            case _:
                pass
        plan = cluster.step()
        assert len(plan.delete) <= len(pods), "a pod that is being deleted is deleted again"
        alive_pods = [
            pod["metadata"]["labels"]["kubealign.dev/process"]
            for pod in cluster.pods.values()
            if not (pod_state.is_leftover(pod_view(pod)) or has_kept_log(pod_view(pod)))
        ]
        assert len(alive_pods) == len(set(alive_pods)), "two pods of one process may run"
        failed = Counter(
            pod["metadata"]["labels"]["kubealign.dev/process"]
            for pod in cluster.pods.values()
            if has_kept_log(pod_view(pod))
        )
        # The last pod of a process of a finished job may have failed too.
        assert all(count <= 2 for count in failed.values()), "more than the last failed pod is kept"


_HAPPENINGS = (
    "serve",
    "serve",
    "nodes answer",
    "prepared",
    "crash",
    "delete",
    "vanish",
    "finalizer",
    "finalized",
    "suspend",
    "scale",
    "time",
    "object",
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    job=st.sampled_from(["sft", "two-ranks", "ppo"]),
    story=st.lists(st.tuples(st.sampled_from(_HAPPENINGS), st.integers(0, 100)), max_size=25),
)
def test_a_job_finishes_once_under_any_sequence_of_faults(job: str, story: list[tuple[str, int]]) -> None:
    created = {"sft": sft, "two-ranks": two_ranks, "ppo": ppo}[job](lifecycle={"maxRestarts": 3})
    done = DependencyView("sft", "1", phase="Succeeded", result=VolumePath("runs", "x"))
    cluster = Cluster(created, dependencies={"sft": done})
    cluster.step()
    tale = _Story(cluster)
    for what, whom in story:
        before = cluster.phase
        tale.happen(what, whom)
        assert before not in _FINAL or cluster.phase == before
        assert cluster.job["status"].get("restarts", 0) <= 3
    cluster.job["spec"]["suspend"] = False
    cluster.remove_finalizers()
    for _ in range(12):
        if cluster.phase in _FINAL:
            break
        cluster.settle()
        cluster.pass_time(40)
        cluster.settle()
        cluster.finish_leaving()
        cluster.settle()
        cluster.serve()
        if "prepare" in cluster.short_names():
            cluster.end(cluster.name("prepare"), 0)
        cluster.settle()
    if cluster.phase == "Running":
        cluster.serve()
        cluster.settle()
        assert cluster.message == ""
        cluster.end(cluster.name("driver"), 0)
        cluster.settle()
        assert cluster.phase == "Succeeded"
    assert cluster.phase in _FINAL
    count = len(cluster.made)
    cluster.pods.clear()
    cluster.objects.clear()
    cluster.settle()
    assert len(cluster.made) == count


@pytest.mark.slow
@settings(**_WIDE)
@given(_worlds())
def test_a_queued_job_has_pods_only_while_it_is_admitted(world: tuple[ObservedState, datetime]) -> None:
    observed, now = world
    plan = _answer(observed, now)
    created = [item for item in plan.create if item["kind"] == "Pod"]
    if get_path(observed.job, "metadata", "labels") == QUEUE and created:
        assert any(map(_is_admitted, observed.kueue.workloads))
    own = {(view.name, view.uid) for view in observed.kueue.workloads if view.owner_uid == UID}
    assert {(change.name, change.uid) for change in plan.workload_changes} <= own
