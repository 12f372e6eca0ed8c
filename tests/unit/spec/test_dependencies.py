"""Jobs in the order in which their results are made."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.dependencies import dependencies, order
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob

Make = Callable[..., dict[str, Any]]


def job(name: str, *needs: str) -> AlignmentJob:
    """A PPO job whose policy, critic, reference and rewards come from other jobs, in this order."""
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


def nothing(name: str) -> bool:
    return False


def names(jobs: list[AlignmentJob]) -> list[str]:
    return [found.name for found in jobs]


def test_every_place_of_a_model_counts() -> None:
    assert dependencies(job("a", "p", "c", "f", "r", "s")) == {"p", "c", "f", "r", "s"}
    assert dependencies(job("a")) == set()


def test_sft_reward_model_and_ppo_of_one_file(document: Make) -> None:
    ppo = document(
        "ppo",
        {
            "spec.policy.model": {"job": {"name": "sft"}},
            "spec.rewards.0.model": {"job": {"name": "rewardmodel"}},
        },
    )
    reward_model = document("rewardModel", {"spec.policy.model": {"job": {"name": "sft"}}})
    jobs = [AlignmentJob.model_validate(item) for item in (ppo, reward_model, document("sft"))]
    assert names(order(jobs, nothing)) == ["sft", "rewardmodel", "ppo"]


def test_independent_jobs_stay_as_they_came() -> None:
    assert names(order([job("c"), job("a"), job("b")], nothing)) == ["c", "a", "b"]
    assert names(order([job("c", "b"), job("a"), job("b")], nothing)) == ["a", "b", "c"]


def test_results_from_elsewhere() -> None:
    assert names(order([job("a", "old")], lambda name: name == "old")) == ["a"]
    with pytest.raises(SpecErrors) as caught:
        order([job("a", "old"), job("b")], nothing)
    (error,) = caught.value.errors
    assert (error.job, error.path, error.held) == ("a", "spec.policy.model.job.name", "old")
    assert error.message == "is no finished job and not in this file, which has b: run old first, or add it"


def test_cycles() -> None:
    with pytest.raises(SpecErrors, match=r"waits for itself: . needs . needs . needs ."):
        order([job("a", "b"), job("b", "c"), job("c", "a")], nothing)
    with pytest.raises(SpecErrors, match=r"a: spec\.critic\.model\.job\.name: waits for its own result"):
        order([job("a", "b", "a"), job("b")], nothing)


@given(st.permutations(list("abcdef")), st.data())
def test_every_job_comes_after_those_it_needs(given_order: list[str], data: st.DataObject) -> None:
    # A job may need those that are before it in the alphabet: never a cycle.
    needs = {
        name: data.draw(st.lists(st.sampled_from(sorted(given_order)[:i]), max_size=4)) if i else []
        for i, name in enumerate(sorted(given_order))
    }
    found = names(order([job(name, *needs[name]) for name in given_order], nothing))
    assert sorted(found) == sorted(given_order)
    for name in found:
        assert all(found.index(other) < found.index(name) for other in needs[name])
