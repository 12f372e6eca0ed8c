"""Mutable and immutable fields of an existing job, and `kubectl scale`."""

import json
import re
from typing import Any

import pytest

from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door, Refused
from cluster.support.kubectl import KubectlFailed
from kubealign.spec.field_lookup import document_fields
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.mutable_fields import MUTABLE_DOCUMENT_FIELDS, MUTABLE_IN_CLUSTER
from support.bad_specs import whole_job

_PLUGIN = {"name": "long", "plugin": {"name": "length"}}
_CONFIG = {"architecture": {"model_type": "llama", "hidden_size": 64}, "tokenizer": {"path": "t"}}

#: Non-default fields of the job in the tests below.
GIVEN: dict[str, Any] = {
    "spec.maxSteps": 100,
    "spec.policy": {"model": {"config": _CONFIG}},
    "spec.rollout": {"replicas": 2},
    "spec.reference": {"placement": "Own"},
    "spec.podTemplate": {"spec": {"nodeSelector": {"pool": "a"}}},
    "spec.checkpoint": {"volume": {"claimName": "runs", "path": "a"}},
    "spec.validation": {"data": {"prompts": {"source": {"path": "held"}}}, "everySteps": 10},
}

FIXED: list[tuple[str, Any]] = [
    ("managedBy", {"managedBy": "kueue.x-k8s.io/multikueue"}),
    ("managedBy", {"managedBy": "kubealign.dev/operator"}),
    ("seed", {"seed": 2}),
    ("maxSteps", {"maxSteps": 99}),
    ("maxSteps", {"maxSteps": 101}),
    ("algorithm", {"algorithm": {"ppo": {"epochsPerStep": 2}}}),
    ("algorithm", {"algorithm": {"ppo": None, "rloo": {}}, "reference": None}),
    ("policy", {"policy": {"model": {"config": {"architecture": {"hidden_size": 128}}}}}),
    ("policy", {"policy": {"model": {"config": {"architecture": {"new": {"deep": 1}}}}}}),
    ("policy", {"policy": {"chatTemplate": {"text": "{{ messages }}"}}}),
    ("data", {"data": {"prompts": {"limit": 5}}}),
    ("data", {"data": {"prompts": {"source": {"path": "other.jsonl"}}}}),
    ("trainer.ranks", {"trainer": {"ranks": 2}}),
    ("trainer.backend", {"trainer": {"backend": {"torch": {"contextParallel": 2}}}}),
    ("trainer.optimizer", {"trainer": {"optimizer": {"gradientClipNorm": 2.0}}}),
    ("trainer.optimizer", {"trainer": {"optimizer": {"adamW": {"states": "Blockwise8Bit"}}}}),
    ("trainer.optimizer", {"trainer": {"optimizer": {"muon": {}}}}),
    ("trainer.optimizer", {"trainer": {"optimizer": {"device": "Host"}}}),
    ("critic", {"critic": {}}),
    ("reference", {"reference": None}),
    ("reference.placement", {"reference": {"placement": "WithTrainer"}}),
    ("reference.ranks", {"reference": {"ranks": 2}}),
    (r"rewards\[0\]\.ranks", {"rewards": [{"name": "helpful", "model": {"path": "reward"}, "ranks": 2}]}),
    (r"rewards\[0\]\.model", {"rewards": [{"name": "helpful", "model": {"path": "other"}}]}),
    (r"rewards\[0\]\.clip", {"rewards": [{"name": "helpful", "model": {"path": "reward"}, "clip": 2.0}]}),
    ("teacher", {"teacher": {"model": {"path": "teacher"}}}),
    ("teachers", {"teachers": [{"name": "math", "model": {"path": "teacher"}}]}),
    ("trainer.lora", {"trainer": {"lora": {"rank": 8}}}),
    ("trainer.lora", {"trainer": {"lora": {"quantization": {"nf4": {}}}}}),
    ("rollout.workflow", {"rollout": {"workflow": {"function": {"module": "a:b"}}}}),
    ("rollout.workflow", {"rollout": {"workflow": {"environment": {"textArena": {"id": "Wordle-v0"}}}}}),
    ("rollout.workflow", {"rollout": {"workflow": {"agent": {"function": {"module": "a:b"}}}}}),
    (r"rewards\[0\]\.weight", {"rewards": [{"name": "helpful", "model": {"path": "reward"}, "weight": 2}]}),
    ("rewards", {"rewards": [{"name": "other", "model": {"path": "reward"}}]}),
    ("rewards", {"rewards": [{"name": "helpful", "model": {"path": "reward"}}, _PLUGIN]}),
    ("rollout.placement", {"rollout": {"placement": "WithTrainer"}}),
    ("rollout.sampling", {"rollout": {"sampling": {"maxTokens": 8}}}),
    ("rollout.engine", {"rollout": {"engine": {"torch": {"maxSequences": 8}}}}),
    ("rollout.engine", {"rollout": {"engine": {"torch": {"cacheShare": 0.5}}}}),
    ("rollout.engine", {"rollout": {"engine": {"torch": {"cacheGib": 2}}}}),
    (
        "rollout.engine",
        {"trainer": {"lora": {}}, "rollout": {"engine": {"torch": None, "vllm": {"adapters": "Native"}}}},
    ),
    (
        "rollout.engine",
        {"rollout": {"engine": {"torch": None, "openai": {"url": "http://vllm-{worker}.vllm:8000"}}}},
    ),
    ("rollout.refit", {"rollout": {"refit": {"inFlight": "Interrupt"}}}),
    ("rollout.refit", {"rollout": {"refit": {"fanOut": 2}}}),
    ("rollout.routingReplay", {"rollout": {"routingReplay": True}}),
    (
        "rollout.maxSequencesPerSample",
        {"rollout": {"workflow": {"function": {"module": "a:b"}}, "maxSequencesPerSample": 2}},
    ),
    ("rollout.groupRetries", {"rollout": {"groupRetries": 9}}),
    ("validation", {"validation": {"data": {"prompts": {"source": {"path": "other"}}}}}),
    ("validation", {"validation": {"sets": [{"name": "a", "data": {"prompts": {"source": {"path": "b"}}}}]}}),
    ("validation", {"validation": {"sampling": {"maxTokens": 9}}}),
    ("overlap", {"overlap": {"scoreOnArrival": False}}),
    ("trackers", {"trackers": [{"name": "lines", "jsonLines": {}}]}),
    ("checkpoint.uri", {"checkpoint": {"uri": "s3://bucket/jobs/ppo"}}),
    ("checkpoint.from", {"checkpoint": {"from": {"job": {"name": "old"}}}}),
    ("checkpoint.volume", {"checkpoint": {"volume": {"path": "elsewhere"}}}),
    ("checkpoint.volume", {"checkpoint": {"volume": None}}),
]

_TEMPLATE = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Gi"}}}]}}

#: Changes that the resumed job's pods, and its document, are made from.
FREE_WHILE_SUSPENDED: list[tuple[str, Any]] = [
    ("podTemplate", {"podTemplate": {"spec": {"nodeSelector": {"pool": "b"}}}}),
    ("podTemplate", {"podTemplate": None}),
    ("controlPods", {"controlPods": {"prepare": _TEMPLATE}}),
    ("trainer.podTemplate", {"trainer": {"podTemplate": _TEMPLATE}}),
    ("reference.podTemplate", {"reference": {"podTemplate": _TEMPLATE}}),
    ("rollout.podTemplate", {"rollout": {"podTemplate": _TEMPLATE}}),
    ("trainer.processesPerPod", {"trainer": {"processesPerPod": 1}}),
    ("reference.processesPerPod", {"reference": {"processesPerPod": 1}}),
    ("rollout.processesPerPod", {"rollout": {"processesPerPod": 1}}),
    ("rollout.minReplicas", {"rollout": {"minReplicas": 2}}),
    ("checkpoint.everySteps", {"checkpoint": {"everySteps": 7}}),
    ("checkpoint.keep", {"checkpoint": {"keep": 5}}),
    ("checkpoint.keepBest", {"checkpoint": {"keepBest": {"metric": "val/reward/mean"}}}),
    ("checkpoint.keepBest", {"checkpoint": {"keepBest": {"metric": "val/reward/mean", "count": 2}}}),
    ("checkpoint.keepEverySteps", {"checkpoint": {"keepEverySteps": 100}}),
    ("checkpoint.recordBatches", {"checkpoint": {"recordBatches": True}}),
    ("lifecycle.maxFailedGroups", {"lifecycle": {"maxFailedGroups": 1}}),
    ("lifecycle.gracePeriodSeconds", {"lifecycle": {"gracePeriodSeconds": 1}}),
]

FREE: list[dict[str, Any]] = [
    {"suspend": True},
    {"suspend": False},
    {"rollout": {"replicas": 4}},
    {"reference": {"replicas": 3}},
    {"rewards": [{"name": "helpful", "model": {"path": "reward"}, "replicas": 2}]},
    {"lifecycle": {"activeDeadlineSeconds": 60, "startDeadlineSeconds": 60, "maxRestarts": 0}},
    {"lifecycle": {"activeDeadlineSeconds": None, "ttlSecondsAfterFinished": 0}},
]


def test_training_fields_are_immutable_and_runtime_fields_are_not(door: Door) -> None:
    before = door.create(whole_job("ppo", GIVEN))
    for field, change in FIXED:
        with pytest.raises(Refused, match=rf"spec\.{field}: Invalid value: cannot be changed"):
            door.patch("ppo", {"spec": change})
    assert door.patch("ppo", {})["spec"] == before["spec"]
    for change in FREE:
        door.patch("ppo", {"spec": change})
    after = door.patch("ppo", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    assert after["spec"]["rollout"]["replicas"] == 4
    assert (after["spec"]["reference"]["replicas"], after["spec"]["rewards"][0]["replicas"]) == (3, 2)
    assert after["spec"]["lifecycle"]["ttlSecondsAfterFinished"] == 0
    assert "activeDeadlineSeconds" not in after["spec"]["lifecycle"]


def test_environment_workers_are_scaled_but_neither_from_nor_to_zero(door: Door) -> None:
    def create(name: str, replicas: int) -> None:
        workflow = {"environment": {"reasoningGym": {"dataset": "chain_sum"}}}
        rewards = [{"name": "helpful", "model": {"path": "reward"}}, {"name": "game", "episode": {}}]
        rollout = {"replicas": 2, "workflow": workflow, "environmentReplicas": replicas}
        job = whole_job("ppo", {**GIVEN, "spec.rollout": rollout, "spec.rewards": rewards})
        job["metadata"]["name"] = name
        door.create(job)

    refusal = r"environmentReplicas: Invalid value: cannot change from or to 0"
    create("played", 2)
    after = door.patch("played", {"spec": {"rollout": {"environmentReplicas": 3}}})
    assert after["spec"]["rollout"]["environmentReplicas"] == 3
    with pytest.raises(Refused, match=refusal):
        door.patch("played", {"spec": {"rollout": {"environmentReplicas": 0}}})
    create("alone", 0)
    with pytest.raises(Refused, match=refusal):
        door.patch("alone", {"spec": {"rollout": {"environmentReplicas": 1}}})


def test_entries_keep_their_order_and_all_fields_but_the_number_of_workers(door: Door) -> None:
    right = {"name": "right", "function": {"module": "rewards:right"}, "replicas": 2}
    door.create(whole_job("rloo", {"spec.rewards": [right, _PLUGIN]}))
    for rewards in ([_PLUGIN, right], [right], []):
        with pytest.raises(Refused, match=r"spec\.rewards: Invalid value: "):
            door.patch("rloo", {"spec": {"rewards": rewards}})
    changed = [right | {"replicas": 5}, _PLUGIN | {"concurrency": 2}]
    with pytest.raises(Refused, match=r"spec\.rewards\[1\]\.concurrency: Invalid value: cannot be changed"):
        door.patch("rloo", {"spec": {"rewards": changed}})
    after = door.patch("rloo", {"spec": {"rewards": [right | {"replicas": 5}, _PLUGIN | {"replicas": 3}]}})
    assert [reward["replicas"] for reward in after["spec"]["rewards"]] == [5, 3]


def test_teachers_are_scaled(door: Door) -> None:
    teacher = {"model": {"path": "teacher"}, "replicas": 2}
    algorithm = {"onPolicyDistillation": {"distribution": {}}}
    job = whole_job("rloo", {"spec.algorithm": algorithm, "spec.teacher": teacher, "spec.rewards": []})
    door.create(job)
    after = door.patch(job["metadata"]["name"], {"spec": {"teacher": {"replicas": 1}}})
    assert after["spec"]["teacher"]["replicas"] == 1
    with pytest.raises(Refused, match=r"spec\.teacher\.model: Invalid value: cannot be changed"):
        door.patch(job["metadata"]["name"], {"spec": {"teacher": {"model": {"path": "other"}}}})


def test_some_fields_may_change_only_while_the_job_is_suspended(door: Door) -> None:
    before = door.create(whole_job("ppo", GIVEN))
    refusal = r"can only be changed while the job is suspended"
    for field, change in FREE_WHILE_SUSPENDED:
        with pytest.raises(Refused, match=rf"spec\.{field}: Invalid value: {refusal}"):
            door.patch("ppo", {"spec": change})
        # The pods may still run: the job has to be suspended first.
        with pytest.raises(Refused, match=refusal):
            door.patch("ppo", {"spec": {**change, "suspend": True}})
    assert door.patch("ppo", {})["spec"] == before["spec"]
    door.patch("ppo", {"spec": {"suspend": True}})
    for _, change in FREE_WHILE_SUSPENDED:
        door.patch("ppo", {"spec": change})
    for field, change in FIXED:
        with pytest.raises(Refused, match=rf"spec\.{field}: Invalid value: cannot be changed"):
            door.patch("ppo", {"spec": change})
    with pytest.raises(Refused, match=refusal):
        door.patch("ppo", {"spec": {"suspend": False, "controlPods": None}})
    after = door.patch("ppo", {"spec": {"suspend": False}})
    assert after["spec"]["trainer"]["podTemplate"] == _TEMPLATE
    assert "podTemplate" not in after["spec"]
    assert (after["spec"]["checkpoint"]["everySteps"], after["spec"]["rollout"]["minReplicas"]) == (7, 2)


def test_the_best_checkpoints_may_be_kept_no_more_while_the_job_is_suspended(door: Door) -> None:
    given = {**GIVEN, "spec.checkpoint": {"keepBest": {"metric": "val/reward/mean"}}}
    door.create(whole_job("ppo", given))
    for change in (None, {"metric": "val/reward/mean", "count": 3}):
        with pytest.raises(Refused, match=r"spec\.checkpoint\.keepBest: .*only be changed while"):
            door.patch("ppo", {"spec": {"checkpoint": {"keepBest": change}}})
    door.patch("ppo", {"spec": {"suspend": True}})
    door.patch("ppo", {"spec": {"checkpoint": {"keepBest": None}}})
    assert "keepBest" not in door.patch("ppo", {"spec": {"suspend": False}})["spec"]["checkpoint"]


def test_every_field_of_the_spec_is_in_one_of_the_tables() -> None:
    free = {path.split(".")[1].removesuffix("[]") for path in MUTABLE_IN_CLUSTER}
    assert {path.removeprefix("spec.") for path in MUTABLE_DOCUMENT_FIELDS} <= {
        field for field, _ in FREE_WHILE_SUSPENDED
    }
    tried = {re.split(r"[.\\]", field)[0] for field, _ in (*FIXED, *FREE_WHILE_SUSPENDED)}
    tried |= {name for change in FREE for name in change}
    assert set(document_fields(AlignmentJobSpec)) == tried
    assert free - {"teacher", "teachers"} <= {name for change in FREE for name in change}


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["by-client", "by-server"])
def test_the_same_document_applied_again_changes_nothing(
    flags: tuple[str, ...], control_plane: ControlPlane, door: Door, namespace: str
) -> None:
    text = json.dumps(whole_job("ppo", GIVEN))
    control_plane.kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=text)
    before = door.patch("ppo", {})
    control_plane.kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=text)
    after = door.patch("ppo", {})
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], 1)


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "grpo"])
def test_a_job_without_a_rollout_section_can_be_scaled(
    algorithm: str, control_plane: ControlPlane, door: Door, namespace: str
) -> None:
    door.create(whole_job(algorithm))
    control_plane.kubectl("scale", f"aj/{algorithm}", "--replicas=3", "-n", namespace)
    assert door.patch(algorithm, {})["spec"]["rollout"]["replicas"] == 3
    with pytest.raises(KubectlFailed, match=r"spec\.rollout\.replicas.*greater than or equal to 1"):
        control_plane.kubectl("scale", f"aj/{algorithm}", "--replicas=0", "-n", namespace)


def test_a_job_without_workers_is_not_scaled(control_plane: ControlPlane, door: Door, namespace: str) -> None:
    door.create(whole_job("sft"))
    with pytest.raises(
        KubectlFailed, match=r"spec\.rollout: Invalid value: (\"object\": )?sft does not sample"
    ):
        control_plane.kubectl("scale", "aj/sft", "--replicas=3", "-n", namespace)
