"""Redis in the operator: one user per job, progress of the driver in the status, and outages of Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from cluster.support.behaviour import Exit
from cluster.support.cluster_jobs import sft, until_told
from cluster.support.operator_process import OperatorProcess
from cluster.support.redis_process import RedisProcess, password_in
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path) as running:
        yield running


@pytest.fixture
def watched(team: Team, redis: RedisProcess, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Operator with a Redis configuration."""
    where = (tmp_path, team.control_plane.kubeconfig, team.namespace)
    with OperatorProcess(*where, redis=redis.config, progressSeconds=0.2) as running:
        yield running


def _job_client(team: Team, redis: RedisProcess, name: str) -> Redis:
    core = client.CoreV1Api(team.control_plane.api)
    secret: Any = core.read_namespaced_secret(f"{name}-credentials", team.namespace)
    return redis.client(f"kubealign-{team.job(name)['metadata']['uid']}", password_in(secret))


def _says(team: Team, redis: RedisProcess, name: str, step: int) -> bool:
    """Report a step as the job's driver does. Returns False when Redis refuses the login."""
    prefix = f"kubealign:{team.namespace}:{name}:"
    try:
        driver = _job_client(team, redis, name)
        driver.hset(f"{prefix}status", mapping={"step": step, "max_steps": 10, "weight_version": step})
        driver.xadd(f"{prefix}metrics", {"step": step, "json": '{"reward/mean": 0.25, "kl/reference": 0.5}'})
    except RedisError:
        return False
    return True


def test_a_job_has_a_user_and_its_progress(
    team: Team, watched: OperatorProcess, redis: RedisProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(sft("one"), sft("two"))
    team.until_phase("one", "Running")
    team.until(lambda: _says(team, redis, "one", 3), "the driver to be let in")
    team.until(lambda: team.job("one")["status"].get("step") == 3, "the step in the status")
    status = team.job("one")["status"]
    assert (status["reward"], status["kl"], status["weightVersion"], status["maxSteps"]) == (0.25, 0.5, 3, 10)
    driver = _job_client(team, redis, "one")
    for act in (
        lambda: driver.set(f"kubealign:{team.namespace}:two:status", "stolen"),
        lambda: driver.get(f"kubealign:{team.namespace}:two:status"),
        lambda: driver.keys("*"),
        lambda: driver.acl_users(),
    ):
        with pytest.raises(NoPermissionError):
            act()
    # The last report of a driver that ends right afterwards is not lost.
    _says(team, redis, "one", 10)
    simulated.exit(team.namespace, "one-driver-0", Exit())
    team.until_phase("one", "Succeeded")
    assert team.job("one")["status"]["step"] == 10


def test_the_keys_of_a_finished_job_go_with_it(
    team: Team, watched: OperatorProcess, redis: RedisProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(sft("one"), sft("two"))
    for name in ("one", "two"):
        team.until_phase(name, "Running")
        team.until(lambda name=name: _says(team, redis, name, 1), f"the driver of {name} to be let in")
        simulated.exit(team.namespace, f"{name}-driver-0", Exit())
        team.until_phase(name, "Succeeded")
    team.until(lambda: redis.users() == {"admin", "default"}, "the users to go when the jobs are done")

    def keys_of() -> set[str]:
        return {key.split(":")[2] for key in redis.client().keys("*")}

    assert keys_of() == {"one", "two"}
    team.control_plane.kubectl("delete", "aj", "one", "-n", team.namespace)
    team.until(lambda: keys_of() == {"two"}, "the keys of the first to go with it")
    # The next operator notices a job that is deleted while no operator runs.
    watched.daemon.stop()
    team.control_plane.kubectl("delete", "aj", "two", "-n", team.namespace)
    watched.start()
    team.until(lambda: not keys_of(), "the keys of the second to go too")


def test_a_restarted_redis_gets_its_users_back(
    team: Team, watched: OperatorProcess, redis: RedisProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    team.until(lambda: _says(team, redis, "one", 1), "the driver to be let in")
    redis.restart()
    assert redis.users() == {"admin", "default"}
    team.until(lambda: _says(team, redis, "one", 2), "the driver to be let in again")
    team.until(lambda: team.job("one")["status"].get("step") == 2, "the step in the status")
    team.control_plane.kubectl("delete", "aj", "one", "-n", team.namespace)
    team.until(lambda: redis.users() == {"admin", "default"}, "the user to go with the job")
    team.until(lambda: not redis.client().keys("*"), "the keys to go with the job")


def test_jobs_run_without_redis(
    team: Team, watched: OperatorProcess, redis: RedisProcess, simulated: SimulatedKubelet
) -> None:
    simulated.behave = until_told
    redis.daemon.kill()
    team.apply(sft("one"))
    team.until_phase("one", "Running")
    team.until(lambda: watched.metric("kubealign_operator_redis_up") == 0, "the metric to tell")
    redis.start()
    team.until(lambda: _says(team, redis, "one", 4), "the driver to be let in once Redis is there")
    team.until(lambda: team.job("one")["status"].get("step") == 4, "the step in the status")
    assert watched.metric("kubealign_operator_redis_up") == 1
