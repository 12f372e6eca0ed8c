"""A job with several pods of a reward and of its environment: each may be lost, and both are scaled while the
job runs."""

import json

import pytest

from cluster.support.lost_pods import lose_pod, pods_of
from cluster.support.paced_jobs import assert_each_prompt_once, paced_job, prepare, set_pace
from cluster.support.tenant import CLAIM, Tenant

pytestmark = pytest.mark.timeout(900)

_STEPS = 100
_EPISODES = "episodes"
#: A game that records the pods in which episodes are played.
_GAME = f"""
import socket
from pathlib import Path

from kubealign_services.environments import StepResult


class Letters:
    def reset(self, seed, columns):
        (Path("/volumes/{CLAIM}/{_EPISODES}") / socket.gethostname()).touch()

    def step(self, action):
        return StepResult(reward=action.count("b"), done=True, metrics={{"letters": len(action)}})
"""


def scale(tenant: Tenant, environments: int, rewards: int) -> None:
    changes = {"/spec/rollout/environmentReplicas": environments, "/spec/rewards/0/replicas": rewards}
    patch = [{"op": "replace", "path": path, "value": replicas} for path, replicas in changes.items()]
    tenant.kubectl("patch", "aj", "pools", "--type=json", "-p", json.dumps(patch))


def ready_rewards(tenant: Tenant) -> tuple[int, int]:
    roles = {role["name"]: role for role in tenant.status("pools")["roles"]}
    return roles["reward-letters"]["replicas"], roles["reward-letters"]["ready"]


def test_pods_of_rewards_and_environments_are_lost_and_scaled(tenant: Tenant) -> None:
    prepare(tenant, _STEPS)
    episodes = tenant.folder / _EPISODES
    episodes.mkdir()
    episodes.chmod(0o777)
    game = {"kind": "ConfigMap", "metadata": {"name": "games"}, "data": {"game.py": _GAME}}
    tenant.apply({"apiVersion": "v1", **game})
    job = paced_job("pools", _STEPS)
    spec = job["spec"]
    spec["rewards"][0]["replicas"] = 2
    spec["rewards"].append({"name": "game", "episode": {}})
    function = {"configMap": {"name": "games", "key": "game.py", "function": "Letters"}}
    spec["rollout"] |= {"workflow": {"environment": {"function": function}}, "environmentReplicas": 2}
    tenant.apply(job)
    tenant.until_beyond("pools", 1, "at the start")
    roles = {role["name"]: (role["replicas"], role["ready"]) for role in tenant.status("pools")["roles"]}
    assert (roles["environment"], roles["reward-letters"]) == ((2, 2), (2, 2))
    assert {path.name for path in episodes.iterdir()} == {"environment-0", "environment-1"}

    for process in ("environment-1", "reward-letters-1", "rollout-0"):
        lose_pod(tenant, "pools", process)
    scale(tenant, environments=3, rewards=3)
    tenant.until((episodes / "environment-2").exists, "an episode in the third environment worker", 180)
    tenant.until(lambda: ready_rewards(tenant) == (3, 3), "the third process of the reward", 120)
    scale(tenant, environments=1, rewards=1)
    for process in ("environment-1", "reward-letters-1", "reward-letters-2"):
        tenant.until(lambda name=process: not pods_of(tenant, "pools", name), f"{process} to go", 120)
    tenant.until_beyond("pools", tenant.step("pools"), "with one worker of each")
    assert not tenant.status("pools").get("restarts"), "a deleted pod is no failure"
    set_pace(tenant, 0.0)
    tenant.until_phase("pools", "Succeeded", 300)
    assert_each_prompt_once(tenant, "pools", _STEPS)
    samples = (tenant.run_folder("pools") / "samples.jsonl").read_text().splitlines()
    assert samples
    for sample in map(json.loads, samples):
        assert sample["rewards"]["game"] == sample["response"].count("b")
