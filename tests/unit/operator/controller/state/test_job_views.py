"""The view that one job has of another."""

from typing import Any

from kubealign.spec.algorithms import ResultKind
from kubealign_operator.controller.state.job_views import (
    credentials_generation,
    dependency_names,
    dependency_view,
    document_generation,
)
from support.rendering.jobs import sft


def test_the_kind_of_a_jobs_result() -> None:
    assert dependency_view(sft()).makes is ResultKind.POLICY
    assert dependency_view(sft(algorithm={"annotate": {}})).makes is ResultKind.DATA
    assert dependency_view(sft(algorithm={"rewardModel": {}})).makes is ResultKind.REWARD_MODEL
    # An older operator may not know a newer algorithm.
    assert dependency_view(sft(algorithm={"tomorrows": {}})).makes is None


def test_data_and_models_of_other_jobs_are_dependencies() -> None:
    job = sft(
        policy={"model": {"job": {"name": "base"}}},
        data={"demonstrations": {"source": {"job": {"name": "samples"}}}},
        validation={"data": {"demonstrations": {"source": {"job": {"name": "held"}}}}},
    )
    assert dependency_names(job) == {"base", "samples", "held"}


def test_dependencies_are_found_at_any_depth() -> None:
    spec: Any = {"job": {"name": "base"}}
    for _ in range(5_000):
        spec = {"a": [spec]}
    assert dependency_names({"spec": spec}) == {"base"}


def test_generations_are_those_of_the_status_and_1_for_a_job_of_an_earlier_release() -> None:
    status = {"credentials": {"generation": 4}, "document": {"generation": 2}}
    assert (credentials_generation(status), document_generation(status)) == (4, 2)
    for document in (None, {}, {"generation": 0}, {"generation": "2"}):
        assert document_generation({"document": document}) == 1
    assert (credentials_generation({}), document_generation({})) == (1, 1)
