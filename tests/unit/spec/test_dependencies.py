"""Dependencies between jobs and the order in which jobs run."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.algorithms import Algorithm, Makes
from kubealign.spec.dependencies import dependencies, made_by, misuse, order, references
from kubealign.spec.errors import SpecErrors
from kubealign.spec.fields import allowed
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import dotted

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
    assert dependencies(job("a", "p", "c", "f", "r", "s")) == {"p", "c", "f", "r", "s"}
    assert dependencies(job("a")) == set()


def test_data_sets_are_dependencies() -> None:
    given = job("a").model_dump(by_alias=True, exclude_unset=True)
    given["spec"]["data"]["prompts"]["source"] = {"job": {"name": "d"}}
    given["spec"]["validation"] = {"data": {"prompts": {"source": {"job": {"name": "v"}}}}}
    reading = AlignmentJob.model_validate(given)
    assert dependencies(reading) == {"d", "v"}
    assert names(order([reading, job("v", "d"), job("d")], never_finished)) == ["d", "v", "a"]
    assert [(dotted(place), name) for place, name in references(reading)] == [
        ("spec.data.prompts.source.job.name", "d"),
        ("spec.validation.data.prompts.source.job.name", "v"),
    ]


def test_accepted_result_kinds_per_field() -> None:
    policy, critic, reward = ("spec", "policy", "model"), ("spec", "critic", "model"), ("spec", "rewards", 0)
    rows = ("spec", "data", "prompts", "source", "job", "name")
    may = {
        policy: {Makes.POLICY},
        critic: {Makes.POLICY, Makes.REWARD_MODEL},
        reward: {Makes.REWARD_MODEL},
        rows: {Makes.DATA},
    }
    for place, fitting in may.items():
        assert {makes for makes in Makes if misuse(place, "other", makes) is None} == fitting
    assert misuse(critic, "other", Makes.DATA) == (
        "must be a job that makes a policy or a reward model: other makes data"
    )


def test_result_kind_of_a_raw_algorithm() -> None:
    assert made_by({"generate": {}}) is Makes.DATA
    assert made_by({"rewardModel": {}}) is Makes.REWARD_MODEL
    assert made_by({"reward_model": {}}) is made_by({"tomorrows": {}}) is made_by({}) is None
    made = {name: made_by({name: {}}) for name in allowed(Algorithm)}
    others = {name for name, makes in made.items() if makes is not Makes.POLICY}
    assert others == {"rewardModel", "generate", "annotate"}


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
    assert names(order(jobs, never_finished)) == ["sft", "rewardmodel", "ppo"]


def test_independent_jobs_keep_their_order() -> None:
    assert names(order([job("c"), job("a"), job("b")], never_finished)) == ["c", "a", "b"]
    assert names(order([job("c", "b"), job("a"), job("b")], never_finished)) == ["a", "b", "c"]


def test_results_of_jobs_outside_the_file() -> None:
    assert names(order([job("a", "old")], lambda name: name == "old")) == ["a"]
    with pytest.raises(SpecErrors) as caught:
        order([job("a", "old"), job("b")], never_finished)
    (error,) = caught.value.errors
    assert (error.job, error.path, error.held) == ("a", "spec.policy.model.job.name", "old")
    assert (
        error.message == "is not a finished job and not in this file, which has b: run old first, or add it"
    )


def test_dependency_cycles_are_errors() -> None:
    with pytest.raises(SpecErrors, match=r"waits for itself: . needs . needs . needs ."):
        order([job("a", "b"), job("b", "c"), job("c", "a")], never_finished)
    with pytest.raises(SpecErrors, match=r"a: spec\.critic\.model\.job\.name: waits for its own result"):
        order([job("a", "b", "a"), job("b")], never_finished)


@given(st.permutations(list("abcdef")), st.data())
def test_every_job_follows_its_dependencies(given_order: list[str], data: st.DataObject) -> None:
    # A job may need those that are before it in the alphabet: never a cycle.
    needs = {
        name: data.draw(st.lists(st.sampled_from(sorted(given_order)[:i]), max_size=4)) if i else []
        for i, name in enumerate(sorted(given_order))
    }
    found = names(order([job(name, *needs[name]) for name in given_order], never_finished))
    assert sorted(found) == sorted(given_order)
    for name in found:
        assert all(found.index(other) < found.index(name) for other in needs[name])
