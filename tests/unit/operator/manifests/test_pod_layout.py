"""Division of ranks into pods, by processesPerPod or by the GPUs of the containers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.roles import Process, pod_process_names, roles
from kubealign.spec.errors import SpecError
from kubealign.spec.job import AlignmentJob
from kubealign_operator.kube_views.gpu_limits import gpu_count
from kubealign_operator.kube_views.pod_view import pod_view
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_layout import (
    arrange_pods,
    pod_layout_errors,
    processes_per_pod,
)

PLATFORM = Platform(image="kubealign/services:1", redis_host="redis")


def gpus(count: int, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": {resource: count}}}]}}


def make_job(**spec: Any) -> AlignmentJob:
    document = {
        "policy": {"model": {"path": "/policy"}},
        "maxSteps": 1,
        "algorithm": {"grpo": {"kl": {"fixed": {"coefficient": 0.1}}}},
        "data": {"prompts": {"source": {"path": "/data.jsonl"}}},
        "rewards": [{"name": "right", "function": {"module": "scores:reward"}}],
        "checkpoint": {"volume": {"claimName": "runs"}},
        **spec,
    }
    return AlignmentJob.model_validate({"metadata": {"name": "sums"}, "spec": document})


def layout(job: AlignmentJob, *pods: dict[str, Any]) -> list[list[str]]:
    """Return the names of the processes in each pod."""
    arranged = arrange_pods(
        roles(job), [pod_view(pod) for pod in pods], lambda one: processes_per_pod(PLATFORM, job.spec, one)
    )
    return [[process.name for process in pod.pod_processes] for pod in arranged]


def layout_errors(job: AlignmentJob) -> list[SpecError]:
    return list(pod_layout_errors(PLATFORM, job.spec, roles(job)))


def pods_of(job: AlignmentJob, group: str) -> list[list[str]]:
    return [pod for pod in layout(job) if pod[0].startswith(f"{group}-")]


def test_a_rank_has_a_pod_of_its_own_without_gpus() -> None:
    assert pods_of(make_job(trainer={"ranks": 2}), "trainer") == [["trainer-0"], ["trainer-1"]]


def test_the_gpus_of_a_pod_are_shared_by_as_many_ranks() -> None:
    job = make_job(trainer={"ranks": 4, "podTemplate": gpus(2)})
    assert pods_of(job, "trainer") == [["trainer-0", "trainer-1"], ["trainer-2", "trainer-3"]]


def test_the_template_of_the_job_counts_for_every_group() -> None:
    reference = {"placement": "Own", "replicas": 2, "ranks": 2}
    job = make_job(trainer={"ranks": 2}, reference=reference, podTemplate=gpus(8))
    assert pods_of(job, "trainer") == [["trainer-0", "trainer-1"]]
    assert pods_of(job, "reference") == [["reference-0", "reference-0-r1"], ["reference-1", "reference-1-r1"]]


def test_a_worker_of_the_torch_engine_is_divided_like_a_group() -> None:
    rollout = {"replicas": 2, "engine": {"torch": {"tensorParallel": 4}}, "processesPerPod": 2}
    assert pods_of(make_job(rollout=rollout), "rollout") == [
        ["rollout-0", "rollout-0-r1"],
        ["rollout-0-r2", "rollout-0-r3"],
        ["rollout-1", "rollout-1-r1"],
        ["rollout-1-r2", "rollout-1-r3"],
    ]


def test_one_process_uses_all_gpus_of_an_engine_with_ranks_of_its_own() -> None:
    rollout = {"engine": {"vllm": {"tensorParallel": 8}}, "podTemplate": gpus(8)}
    assert pods_of(make_job(rollout=rollout), "rollout") == [["rollout-0"]]


def test_the_field_overrides_the_gpus() -> None:
    job = make_job(trainer={"ranks": 8, "processesPerPod": 4, "podTemplate": gpus(8)})
    assert [len(pod) for pod in pods_of(job, "trainer")] == [4, 4]


def test_every_entry_of_rewards_has_its_own_field() -> None:
    models = [{"name": name, "model": {"path": "/r"}, "ranks": 2} for name in ("a", "b")]
    models[1]["processesPerPod"] = 2
    job = make_job(rewards=models)
    assert pods_of(job, "reward-a") == [["reward-a-0"], ["reward-a-0-r1"]]
    assert pods_of(job, "reward-b") == [["reward-b-0", "reward-b-0-r1"]]


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"nvidia.com/gpu": 8}, 8),
        ({"amd.com/gpu": "4", "cpu": "32", "rdma/hca": 1}, 4),
        ({"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-2g.20gb": "1"}, 3),
        ({"nvidia.com/gpu": "1k"}, 0),
        ({}, 0),
    ],
)
def test_devices_that_count_as_gpus(limits: dict[str, Any], count: int) -> None:
    assert gpu_count(limits) == count


def test_gpus_that_do_not_divide_the_ranks_are_an_error() -> None:
    job = make_job(trainer={"ranks": 12, "podTemplate": gpus(8)})
    (error,) = layout_errors(job)
    assert str(error).startswith("spec.trainer.processesPerPod")
    assert "the 8 GPUs in the limits of a pod do not divide the 12 ranks" in str(error)
    assert len(pods_of(job, "trainer")) == 12
    settled = make_job(trainer={"ranks": 12, "processesPerPod": 6, "podTemplate": gpus(8)})
    assert not layout_errors(settled)
    # A pod may have more GPUs than there are ranks.
    assert not layout_errors(make_job(trainer={"ranks": 2, "podTemplate": gpus(8)}))


@pytest.mark.parametrize(
    ("section", "spec", "message"),
    [
        ("trainer", {"ranks": 4, "processesPerPod": 3}, "must divide ranks (4)"),
        ("rollout", {"processesPerPod": 2}, "must divide engine.torch.tensorParallel (1)"),
        (
            "reference",
            {"placement": "WithTrainer", "processesPerPod": 1},
            "a reference WithTrainer has no pod of its own: set trainer.processesPerPod",
        ),
    ],
)
def test_impossible_numbers_are_refused(section: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="processesPerPod") as refusal:
        make_job(**{section: spec})
    assert message in str(refusal.value)


def existing_pod(process: str, size: int, attempt: int = 0, **metadata: Any) -> dict[str, Any]:
    labels = {
        "kubealign.dev/process": process,
        "kubealign.dev/attempt": str(attempt),
        "kubealign.dev/processes": str(size),
    }
    return {"metadata": {"name": f"sums-{process}-{attempt}", "labels": labels, **metadata}}


def test_pods_that_run_keep_their_size_until_the_group_starts_again() -> None:
    job = make_job(trainer={"ranks": 4, "processesPerPod": 4})
    old = [existing_pod("trainer-0", 2), existing_pod("trainer-2", 2)]
    trainers = [pod for pod in layout(job, *old) if pod[0].startswith("trainer")]
    assert trainers == [["trainer-0", "trainer-1"], ["trainer-2", "trainer-3"]]
    # Also while one of them is missing.
    assert trainers == [pod for pod in layout(job, old[0]) if pod[0].startswith("trainer")]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_process_is_in_one_pod_under_the_name_that_clients_derive(
    pods: int, size: int, replicas: int, is_elastic: bool
) -> None:
    ranks = pods * size
    if is_elastic:
        scorer = {"placement": "Own", "replicas": replicas, "ranks": ranks, "processesPerPod": size}
        job, group = make_job(reference=scorer), "reference"
    else:
        job, group = make_job(trainer={"ranks": ranks, "processesPerPod": size}), "trainer"
    every: tuple[Process, ...] = roles(job)
    arranged = arrange_pods(every, (), lambda one: processes_per_pod(PLATFORM, job.spec, one))
    assert sorted(process.name for pod in arranged for process in pod.pod_processes) == sorted(
        process.name for process in every
    )
    for pod in arranged:
        if pod.group == group:
            assert len(pod.pod_processes) == size
            rank = pod.rank if pod.elastic and pod.world_size > 1 else None
            names = [process.name for process in pod.pod_processes]
            assert pod_process_names(pod.name, size, rank) == names
            assert [process.rank for process in pod.pod_processes] == [*range(pod.rank, pod.rank + size)]
