"""Numbers of workers in a job's document: groups, patches, and what a running job does not read again."""

import copy
from pathlib import Path
from typing import Any

import pytest

from kubealign.client.backends.local.patch import plan_patch
from kubealign.client.backends.replicas import (
    describe_workers,
    replicas_by_group,
    replicas_operations,
    replicas_patch,
)
from kubealign.client.backends.worker_groups import ENVIRONMENT, ROLLOUT
from kubealign.client.errors import Conflict
from kubealign.client.records import JobRecord
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign.process_settings import Role
from kubealign.spec.job import AlignmentJob

SPEC: dict[str, Any] = {
    "maxSteps": 4,
    "algorithm": {"rloo": {"promptsPerStep": 4}},
    "policy": {"model": {"path": "/policy"}},
    "data": {"prompts": {"source": {"path": "/prompts.jsonl"}}},
    "reference": {"replicas": 2},
    "rewards": [
        {"name": "game", "episode": {}},
        {"name": "right", "function": {"module": "rewards:right"}, "replicas": 3, "weight": 2.0},
    ],
    "rollout": {
        "replicas": 4,
        "environmentReplicas": 5,
        "workflow": {"environment": {"reasoningGym": {"dataset": "chain_sum"}}},
    },
}
GROUPS = {"rollout": 4, "environment": 5, "reward-right": 3, "reference": 2}


def document(phase: str | None = None) -> dict[str, Any]:
    resource = {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "scaled", "namespace": "default", "uid": "1"},
        "spec": SPEC,
    }
    return resource if phase is None else resource | {"status": {"phase": phase}}


def job_of(resource: dict[str, Any]) -> AlignmentJob:
    return AlignmentJob.model_validate({**resource, "metadata": {"name": "scaled"}})


def test_groups_are_named_by_their_roles() -> None:
    assert (ROLLOUT, ENVIRONMENT) == (Role.ROLLOUT, Role.ENVIRONMENT)


def test_the_groups_are_those_with_processes_of_their_own() -> None:
    assert replicas_by_group(job_of(document())) == GROUPS


@pytest.mark.parametrize("group", GROUPS)
def test_a_patch_changes_the_number_of_one_group_and_nothing_else(group: str) -> None:
    before = document()
    patch = replicas_patch(job_of(before), before, group, 9)
    after = apply_merge_patch(before, patch)
    assert replicas_by_group(job_of(after)) == GROUPS | {group: 9}
    restored = apply_merge_patch(after, replicas_patch(job_of(after), after, group, GROUPS[group]))
    assert restored == before


@pytest.mark.parametrize("group", GROUPS)
def test_operations_change_the_number_of_one_group_and_nothing_else(group: str) -> None:
    before = document()
    *tests, change = replicas_operations(job_of(before), group, 9)
    after = copy.deepcopy(before)
    *parents, last = [int(part) if part.isdecimal() else part for part in change["path"].split("/")[1:]]
    holder: Any = after
    for part in parents:
        holder = holder[part]
    holder[last] = change["value"]
    assert change["op"] == "add"
    assert replicas_by_group(job_of(after)) == GROUPS | {group: 9}
    named = {"op": "test", "path": change["path"].replace("/replicas", "/name"), "value": holder.get("name")}
    assert tests == ([named] if "name" in holder else [])


def test_an_unknown_group_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        LookupError, match=r"no workers 'reward-game' to scale; it has rollout, environment, rew"
    ):
        replicas_patch(job_of(document()), document(), "reward-game", 2)


def test_a_running_job_accepts_numbers_of_workers_only() -> None:
    record = JobRecord(document("Running"))
    rewards = [SPEC["rewards"][0], SPEC["rewards"][1] | {"replicas": 1}]
    patch = {"spec": {"rewards": rewards, "rollout": {"environmentReplicas": 6}}}
    assert plan_patch(record, patch, Path("/")).scaled == {"environment": 6, "reward-right": 1}
    assert plan_patch(record, {"spec": {"rollout": {"replicas": 4}}}, Path("/")).scaled == {}
    for change in (
        {"checkpoint": {"everySteps": 3}},
        {"rollout": {"environmentReplicas": 0}},
    ):
        with pytest.raises(Conflict, match=r"suspend it first"):
            plan_patch(record, {"spec": change}, Path("/"))


@pytest.mark.parametrize(
    ("group", "replicas", "text"),
    [
        ("rollout", 1, "1 rollout worker"),
        ("environment", 3, "3 environment workers"),
        ("reward-right", 2, "2 reward workers of reward-right"),
    ],
)
def test_numbers_of_workers_in_words(group: str, replicas: int, text: str) -> None:
    assert describe_workers(group, replicas) == text
