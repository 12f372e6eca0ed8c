"""The view that one job has of another."""

from kubealign.spec.algorithms import Makes
from kubealign_operator.controller.views import job_view, needed_jobs
from support.rendering.jobs import sft


def test_the_kind_of_a_jobs_result() -> None:
    assert job_view(sft()).makes is Makes.POLICY
    assert job_view(sft(algorithm={"annotate": {}})).makes is Makes.DATA
    assert job_view(sft(algorithm={"rewardModel": {}})).makes is Makes.REWARD_MODEL
    # An older operator may not know a newer algorithm.
    assert job_view(sft(algorithm={"tomorrows": {}})).makes is None


def test_data_and_models_of_other_jobs_are_dependencies() -> None:
    job = sft(
        policy={"model": {"job": {"name": "base"}}},
        data={"demonstrations": {"source": {"job": {"name": "samples"}}}},
        validation={"data": {"demonstrations": {"source": {"job": {"name": "held"}}}}},
    )
    assert needed_jobs(job) == {"base", "samples", "held"}
