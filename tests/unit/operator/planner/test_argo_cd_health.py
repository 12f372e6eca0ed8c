"""The health that Argo CD shows for jobs, from statuses that the planner writes.

conftest.py runs the health check in all other tests of the planner too.
"""

from collections.abc import Callable

import pytest

from support.argo_cd import EXPECTED, Combination, Health, combination, health
from support.rendering.cluster import Cluster
from support.rendering.jobs import ppo, sft


def _running() -> Cluster:
    cluster = Cluster(sft())
    cluster.start()
    return cluster


def _settled(cluster: Cluster) -> Cluster:
    cluster.settle()
    return cluster


def _ended(exit_code: int) -> Cluster:
    cluster = _running()
    cluster.end(cluster.name("driver"), exit_code, "the data has no prompts")
    cluster.step()
    return cluster


def _crashed() -> Cluster:
    cluster = _running()
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.step()
    return cluster


def _suspending() -> Cluster:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    cluster.step()
    return cluster


def _suspended() -> Cluster:
    cluster = _suspending()
    # The driver ends first.
    for _ in range(2):
        cluster.finish_leaving()
        cluster.settle()
    return cluster


def _of_an_earlier_release() -> Cluster:
    """Return a job of the release that ended a succeeded job with Ready=False."""
    cluster = _ended(0)
    cluster.condition("Ready")["status"] = "False"
    return cluster


def _of_a_stricter_operator(cluster: Cluster) -> Cluster:
    """Return the job as an operator sees it to which the spec is invalid."""
    cluster.job["spec"]["surprise"] = 1
    cluster.step()
    return cluster


SCENARIOS: dict[Combination, Callable[[], Cluster]] = {
    Combination("Pending", False, False): lambda: _settled(Cluster(ppo(), dependencies={"sft": None})),
    Combination("Pending", True, False): lambda: _settled(Cluster(sft(checkpoint={}))),
    Combination("Starting", False, False): lambda: _settled(Cluster(sft())),
    Combination("Starting", True, False): lambda: _of_a_stricter_operator(_settled(Cluster(sft()))),
    Combination("Running", False, True): _running,
    Combination("Running", False, False): _crashed,
    Combination("Running", True, True): lambda: _of_a_stricter_operator(_running()),
    Combination("Running", True, False): lambda: _of_a_stricter_operator(_crashed()),
    Combination("Suspending", False, False): _suspending,
    Combination("Suspending", True, False): lambda: _of_a_stricter_operator(_suspending()),
    Combination("Suspended", False, False): _suspended,
    Combination("Suspended", True, False): lambda: _of_a_stricter_operator(_suspended()),
    Combination("Succeeded", False, True): lambda: _ended(0),
    Combination("Succeeded", False, False): _of_an_earlier_release,
    Combination("Failed", True, False): lambda: _ended(78),
}


def test_every_combination_has_a_scenario() -> None:
    assert SCENARIOS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("expected", SCENARIOS)
def test_health_of_a_job(expected: Combination) -> None:
    cluster = SCENARIOS[expected]()
    assert combination(cluster.job["status"]) == expected
    assert health(cluster.job).status == EXPECTED[expected]


def test_the_message_is_that_of_the_job_or_names_its_phase() -> None:
    assert health(_running().job) == Health("Healthy", "the job is Running")
    assert "the data has no prompts" in health(_ended(78).job).message
    invalid = health(_of_a_stricter_operator(_running()).job)
    assert "spec.surprise" in invalid.message


@pytest.mark.parametrize("scenario", [_running, _suspended, lambda: _ended(78)])
def test_a_changed_spec_is_progressing_until_the_operator_sees_it(
    scenario: Callable[[], Cluster],
) -> None:
    cluster = scenario()
    cluster.job["metadata"]["generation"] += 1
    assert health(cluster.job) == Health("Progressing", "waits for the operator")


@pytest.mark.parametrize("status", [None, {}, {"conditions": []}, {"observedGeneration": 1}])
def test_a_job_that_no_operator_has_seen_is_progressing(status: dict[str, object] | None) -> None:
    job = sft() if status is None else sft() | {"status": status}
    assert health(job).status == "Progressing"


def test_a_phase_of_a_newer_release_is_progressing() -> None:
    cluster = _running()
    cluster.job["status"] |= {"phase": "Hibernating", "conditions": []}
    assert health(cluster.job) == Health("Progressing", "the job is Hibernating")
