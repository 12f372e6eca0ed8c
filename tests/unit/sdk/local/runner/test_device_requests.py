"""Devices that the processes of a job need on one machine."""

from typing import Any

from kubealign.local.processes.devices import assign_devices
from kubealign.local.runner.device_requests import device_requests
from kubealign.roles import roles, rollout_worker
from kubealign.spec.job import AlignmentJob


def make_job(**spec: Any) -> AlignmentJob:
    document = {
        "policy": {"model": {"path": "/policy"}},
        "maxSteps": 1,
        "algorithm": {"grpo": {"kl": {"fixed": {"coefficient": 0.1}}}},
        "data": {"prompts": {"source": {"path": "/data.jsonl"}}},
        "rewards": [
            {"name": "right", "function": {"module": "scores:reward"}},
            {"name": "polite", "model": {"path": "/polite"}},
        ],
        "reference": {"placement": "Own"},
        **spec,
    }
    return AlignmentJob.model_validate({"metadata": {"name": "sums"}, "spec": document})


def assigned(job: AlignmentJob, count: int, added: int = 0) -> dict[str, tuple[str, ...]]:
    processes = [*roles(job)]
    for replica in range(job.spec.rollout.replicas, job.spec.rollout.replicas + added):
        processes += rollout_worker(job.spec, replica)
    return assign_devices([str(index) for index in range(count)], device_requests(job, processes))


def test_roles_with_a_model_are_spread_over_a_machine_with_eight_gpus() -> None:
    assert assigned(make_job(trainer={"ranks": 2}, rollout={"replicas": 3}), 8) == {
        "trainer-0": ("0",),
        "trainer-1": ("1",),
        "reference-0": ("2",),
        "reward-polite-0": ("3",),
        "rollout-0": ("4",),
        "rollout-1": ("5",),
        "rollout-2": ("6",),
    }


def test_a_rollout_worker_that_is_added_changes_no_other_device() -> None:
    job = make_job(rollout={"replicas": 2})
    before, after = assigned(job, 4), assigned(job, 4, added=2)
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"rollout-2", "rollout-3"}


def test_workers_with_the_trainer_use_its_devices() -> None:
    job = make_job(
        trainer={"ranks": 2},
        rollout={"placement": "WithTrainer", "replicas": 2},
        reference=None,
        rewards=[{"name": "right", "function": {"module": "scores:reward"}}],
    )
    assert assigned(job, 2) == {"trainer-0": ("0",), "trainer-1": ("1",), "reference-0": ("0",)}


def test_an_engine_with_ranks_of_its_own_has_several_devices() -> None:
    job = make_job(rollout={"engine": {"vllm": {"tensorParallel": 2}}})
    assert assigned(job, 8)["rollout-0"] == ("3", "4")


def test_a_worker_with_an_inference_server_has_no_device() -> None:
    job = make_job(rollout={"engine": {"openai": {"url": "http://127.0.0.1:8000"}}})
    assert "rollout-0" not in assigned(job, 8)
