"""Dependencies between jobs and the order in which jobs run."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.algorithms import Algorithm, ResultKind
from kubealign.spec.dependencies import (
    dependency_names,
    order_by_dependencies,
    result_kind_error,
    result_kind_of,
    result_references,
)
from kubealign.spec.errors import SpecErrors
from kubealign.spec.field_lookup import document_fields
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import format_path

Make = Callable[..., dict[str, Any]]


def job(name: str, *needs: str) -> AlignmentJob:
    """Return a PPO job whose policy, critic, reference and rewards come from these jobs, in this order."""
    sources = [{"job": {"name": other}} for other in needs] + [{"path": "x"}] * 4
    spec = {
        "maxSteps": 1,
        "algorithm": {"ppo": {}},
        "policy": {"model": sources[0]},
        "critic": {"model": sources[1]},
        "reference": {"model": sources[2]},
        "rewards": [{"name": f"r{i}", "model": source} for i, source in enumerate(sources[3:])],
        "data": {"prompts": {"source": {"path": "x"}}},
    }
    return AlignmentJob.model_validate({"metadata": {"name": name}, "spec": spec})


def never_finished(name: str) -> bool:
    return False


def names(jobs: list[AlignmentJob]) -> list[str]:
    return [each.name for each in jobs]


def test_models_in_all_fields_are_dependencies() -> None:
    assert dependency_names(job("a", "p", "c", "f", "r", "s")) == {"p", "c", "f", "r", "s"}
    assert dependency_names(job("a")) == set()


def test_data_sets_are_dependencies() -> None:
    given = job("a").model_dump(by_alias=True, exclude_unset=True)
    given["spec"]["data"]["prompts"]["source"] = {"job": {"name": "d"}}
    given["spec"]["validation"] = {"data": {"prompts": {"source": {"job": {"name": "v"}}}}}
    reading = AlignmentJob.model_validate(given)
    assert dependency_names(reading) == {"d", "v"}
    assert names(order_by_dependencies([reading, job("v", "d"), job("d")], never_finished)) == ["d", "v", "a"]
    assert [(format_path(path), name) for path, name in result_references(reading)] == [
        ("spec.data.prompts.source.job.name", "d"),
        ("spec.validation.data.prompts.source.job.name", "v"),
    ]


def test_entries_of_a_mixture_are_dependencies() -> None:
    given = job("a").model_dump(by_alias=True, exclude_unset=True)
    entries = [{"name": "d", "source": {"job": {"name": "d"}}}, {"name": "f", "source": {"path": "x"}}]
    given["spec"]["data"]["prompts"] = {"mixture": entries}
    paths = {format_path(path): name for path, name in result_references(AlignmentJob.model_validate(given))}
    assert paths == {"spec.data.prompts.mixture[0].source.job.name": "d"}


def test_accepted_result_kinds_per_field() -> None:
    policy, critic, reward = ("spec", "policy", "model"), ("spec", "critic", "model"), ("spec", "rewards", 0)
    rows = ("spec", "data", "prompts", "source", "job", "name")
    may = {
        policy: {ResultKind.POLICY},
        critic: {ResultKind.POLICY, ResultKind.REWARD_MODEL},
        reward: {ResultKind.REWARD_MODEL},
        rows: {ResultKind.DATA},
    }
    for path, fitting in may.items():
        assert {makes for makes in ResultKind if result_kind_error(path, "other", makes) is None} == fitting
    assert result_kind_error(critic, "other", ResultKind.DATA) == (
        "must be a job that makes a policy or a reward model: other makes data"
    )


def test_result_kind_of_a_raw_algorithm() -> None:
    assert result_kind_of({"generate": {}}) is ResultKind.DATA
    assert result_kind_of({"rewardModel": {}}) is ResultKind.REWARD_MODEL
    assert (
        result_kind_of({"reward_model": {}})
        is result_kind_of({"tomorrows": {}})
        is result_kind_of({})
        is None
    )
    kinds = {name: result_kind_of({name: {}}) for name in document_fields(Algorithm)}
    others = {name for name, makes in kinds.items() if makes is not ResultKind.POLICY}
    assert others == {"rewardModel", "generate", "annotate", "evaluate"}


def test_order_of_sft_reward_model_and_ppo(document: Make) -> None:
    ppo = document(
        "ppo",
        {
            "spec.policy.model": {"job": {"name": "sft"}},
            "spec.rewards.0.model": {"job": {"name": "rewardmodel"}},
        },
    )
    reward_model = document("rewardModel", {"spec.policy.model": {"job": {"name": "sft"}}})
    jobs = [AlignmentJob.model_validate(item) for item in (ppo, reward_model, document("sft"))]
    assert names(order_by_dependencies(jobs, never_finished)) == ["sft", "rewardmodel", "ppo"]


def test_independent_jobs_keep_their_order() -> None:
    assert names(order_by_dependencies([job("c"), job("a"), job("b")], never_finished)) == ["c", "a", "b"]
    assert names(order_by_dependencies([job("c", "b"), job("a"), job("b")], never_finished)) == [
        "a",
        "b",
        "c",
    ]


def test_results_of_jobs_outside_the_file() -> None:
    assert names(order_by_dependencies([job("a", "old")], lambda name: name == "old")) == ["a"]
    with pytest.raises(SpecErrors) as caught:
        order_by_dependencies([job("a", "old"), job("b")], never_finished)
    (error,) = caught.value.errors
    assert (error.job, error.path, error.value) == ("a", "spec.policy.model.job.name", "old")
    assert (
        error.message == "is not a finished job and not in this file, which has b: run old first, or add it"
    )


def test_dependency_cycles_are_errors() -> None:
    with pytest.raises(SpecErrors, match=r"waits for itself: . needs . needs . needs ."):
        order_by_dependencies([job("a", "b"), job("b", "c"), job("c", "a")], never_finished)
    with pytest.raises(SpecErrors, match=r"a: spec\.critic\.model\.job\.name: waits for its own result"):
        order_by_dependencies([job("a", "b", "a"), job("b")], never_finished)


@given(st.permutations(list("abcdef")), st.data())
def test_every_job_follows_its_dependencies(given_order: list[str], data: st.DataObject) -> None:
    # A job depends only on jobs earlier in the alphabet, so there is no cycle.
    needs = {
        name: data.draw(st.lists(st.sampled_from(sorted(given_order)[:i]), max_size=4)) if i else []
        for i, name in enumerate(sorted(given_order))
    }
    order = names(order_by_dependencies([job(name, *needs[name]) for name in given_order], never_finished))
    assert sorted(order) == sorted(given_order)
    for name in order:
        assert all(order.index(other) < order.index(name) for other in needs[name])
