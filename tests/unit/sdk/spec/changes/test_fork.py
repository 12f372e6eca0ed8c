"""Forks of a job: fields that may change, fields that are refused, and the document of the fork."""

from typing import Any

import pytest

from kubealign.spec.changes.fork import CHANGES_ANNOTATION, ForkedJob, fork_job
from kubealign.spec.errors import SpecErrors
from kubealign.spec.loading.loader import job_from_document
from support.bad_specs import whole_job

_RATE = "spec.trainer.optimizer.adamW.learningRate"


def _parent(algorithm: str = "sft", **changes: Any) -> dict[str, Any]:
    return whole_job(algorithm, {"metadata.name": "parent", "spec.maxSteps": 10, **changes})


def _fork(*overrides: str, algorithm: str = "sft", name: str = "child", step: int = 4) -> ForkedJob:
    return fork_job(_parent(algorithm), name, step, overrides)


def test_a_fork_starts_from_the_checkpoint_of_its_parent_with_the_changed_fields() -> None:
    fork = _fork(f"{_RATE}=0.5", "spec.maxSteps=20")
    source = fork.job.spec.checkpoint.source
    assert source is not None
    assert source.job is not None
    assert (fork.job.name, source.job.name, source.step) == ("child", "parent", 4)
    assert fork.job.spec.trainer.optimizer.adam_w.learning_rate == 0.5
    assert fork.to_document() == {
        "name": "child",
        "parent": "parent",
        "step": 4,
        "firstStep": 5,
        "changes": [
            {"field": "spec.maxSteps", "before": 10, "now": 20},
            {"field": _RATE, "before": None, "now": 0.5},
        ],
    }
    assert fork.job.metadata.annotations[CHANGES_ANNOTATION].splitlines() == [
        "spec.maxSteps was 10, is 20",
        f"{_RATE} was null, is 0.5",
    ]


def test_a_fork_with_nothing_changed_has_the_spec_of_its_parent() -> None:
    fork = _fork()
    assert fork.changes == ()
    assert CHANGES_ANNOTATION not in fork.job.metadata.annotations
    parent = job_from_document(_parent())
    assert fork.job.spec.model_copy(update={"checkpoint": parent.spec.checkpoint}) == parent.spec


def test_a_fork_takes_over_neither_the_address_nor_the_origin_nor_the_suspension_of_its_parent() -> None:
    parent = _parent(
        **{
            "spec.suspend": True,
            "spec.checkpoint": {"uri": "s3://bucket/parent", "keep": 7, "from": {"job": {"name": "first"}}},
        }
    )
    parent["metadata"] |= {
        "uid": "1",
        "resourceVersion": "2",
        "labels": {"team": "math"},
        "annotations": {
            CHANGES_ANNOTATION: "spec.maxSteps was 1, is 10",
            "kubectl.kubernetes.io/x": "",
            "a": "b",
        },
    }
    fork = fork_job(parent, "child", 4)
    checkpoint = fork.job.spec.checkpoint
    assert (checkpoint.uri, checkpoint.keep, fork.job.spec.suspend) == (None, 7, False)
    assert [change.path for change in fork.changes] == ["spec.checkpoint.uri"]
    assert fork.job.metadata.labels == {"team": "math"}
    annotations = fork.job.metadata.annotations
    assert annotations.pop(CHANGES_ANNOTATION).startswith("spec.checkpoint.uri was")
    assert annotations == {"a": "b"}
    assert not fork.job.metadata.model_extra
    with pytest.raises(SpecErrors, match=r"spec\.checkpoint\.uri: belongs to the parent"):
        fork_job(parent, "child", 4, ["spec.checkpoint.uri=s3://bucket/parent"])


@pytest.mark.parametrize(
    ("algorithm", "override"),
    [
        ("sft", f"{_RATE}=0.5"),
        ("sft", "spec.trainer.optimizer.gradientClipNorm=0.5"),
        ("sft", "spec.trainer.optimizer.device=Host"),
        ("sft", "spec.checkpoint.everySteps=3"),
        ("ppo", "spec.rewards[0].weight=2"),
        ("ppo", "spec.algorithm.ppo.epochsPerStep=7"),
        ("ppo", "spec.critic.optimizer.gradientClipNorm=0.5"),
        ("ppo", "spec.rollout.replicas=3"),
    ],
)
def test_fields_that_may_change(algorithm: str, override: str) -> None:
    (change,) = _fork(override, algorithm=algorithm).changes
    # An object that was null differs as a whole.
    assert change.path in (override.partition("=")[0], "spec.critic")


@pytest.mark.parametrize(
    ("algorithm", "override", "message"),
    [
        ("sft", "spec.seed=5", "spec.seed: must be 1, as in parent: the order of the data follows from the"),
        ("sft", "spec.policy.model.path=/m", "spec.policy.model.path: must be .*trained with its tokenizer"),
        ("sft", "spec.data.demonstrations.source.path=/x", "source.path: must be .*the position in the data"),
        ("sft", "spec.data.demonstrations.limit=3", r"limit: must be null.* \(it holds 3\)"),
        ("sft", "spec.trainer.ranks=2", "spec.trainer.ranks: must be 1, .*each rank loads the shard"),
        ("sft", "spec.trainer.lora.rank=8", "spec.trainer.lora: must be null.*the weights of this adapter"),
        ("sft", "spec.trainer.backend.megatron={}", "spec.trainer.backend"),
        (
            "sft",
            "spec.trainer.optimizer.adamW.states=Blockwise8Bit",
            r"states: must be \"Float32\", as in parent: the checkpoint holds the state of this optimiser",
        ),
        ("sft", "spec.trainer.optimizer.muon={}", "spec.trainer.optimizer.muon: must be null"),
        ("ppo", "spec.critic.ranks=2", "spec.critic.ranks: must be 1"),
        ("ppo", "spec.critic.model.path=/m", "spec.critic.model.path: .*the weights of this critic"),
        (
            "ppo",
            "spec.algorithm.ppo.kl.adaptive.target=6",
            "spec.algorithm.kl: .*the state of this algorithm",
        ),
        ("sft", "spec.maxSteps=4", "spec.maxSteps: must be above 4: it counts the parent's steps too"),
        ("sft", "spec.maxSteps=none", "spec.maxSteps: "),
        ("sft", "spec.typo=1", "spec.typo: "),
        ("sft", "maxSteps=5", "maxSteps is not a path in a job"),
        ("sft", "other:spec.seed=2", "there is no job other"),
        ("sft", "metadata.name=x", "metadata.name: is the value of --name"),
        ("sft", "spec.checkpoint.from.step=2", "spec.checkpoint.from: names the parent and the step"),
    ],
)
def test_fields_that_are_refused_by_name_value_and_reason(
    algorithm: str, override: str, message: str
) -> None:
    with pytest.raises(SpecErrors, match=message):
        _fork(override, algorithm=algorithm)


def test_all_refusals_are_given_at_once() -> None:
    with pytest.raises(SpecErrors) as refusal:
        _fork("spec.seed=5", "spec.trainer.ranks=2", name="parent")
    assert [error.path for error in refusal.value.errors] == [
        "metadata.name",
        "spec.seed",
        "spec.trainer.ranks",
    ]


def test_a_fork_does_not_change_the_document_of_its_parent() -> None:
    resource, before = _parent(), _parent()
    fork_job(resource, "child", 4, ["spec.trainer.optimizer.gradientClipNorm=0.5"])
    assert resource == before
