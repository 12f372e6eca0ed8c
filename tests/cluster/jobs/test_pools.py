"""Jobs whose episodes run in pods: with several pods of a reward and of an environment, which may be lost and
are scaled while the job runs; and with agents, which call the policy in the pods of rollout workers.
"""

import json
from pathlib import Path

import pytest

from cluster.support.behaviour import Json
from cluster.support.lost_pods import lose_pod, pods_of
from cluster.support.paced_jobs import assert_each_prompt_once, paced_job, prepare, set_pace
from cluster.support.tenant import CLAIM, Tenant

pytestmark = pytest.mark.timeout(900)

_STEPS = 100
_AGENT_STEPS = 40
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

#: An agent that asks the policy once, by the client library of the OpenAI API, and records its pod.
_AGENT = f"""
import socket
from pathlib import Path

from openai import OpenAI


def solve(client, row):
    with OpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        reply = policy.completions.create(model=client.model, prompt=row.prompt, max_tokens=4)
    (Path("/volumes/{CLAIM}/{_EPISODES}") / socket.gethostname()).touch()
    return float(reply.choices[0].text.count("b"))
"""


def prepare_episodes(tenant: Tenant, steps: int, code: str) -> Path:
    """Write the data of a job and the code of its episodes. Return the folder of their records."""
    prepare(tenant, steps)
    episodes = tenant.folder / _EPISODES
    episodes.mkdir()
    episodes.chmod(0o777)
    source = {"kind": "ConfigMap", "metadata": {"name": "games"}, "data": {"game.py": code}}
    tenant.apply({"apiVersion": "v1", **source})
    return episodes


def episode_job(name: str, steps: int, workflow: Json) -> Json:
    """Return a job whose episodes run the code of `prepare_episodes`, and give the reward `game`."""
    job = paced_job(name, steps)
    job["spec"]["rewards"].append({"name": "game", "episode": {}})
    job["spec"]["rollout"] |= {"workflow": workflow}
    return job


def assert_rewards_are_those_of_the_responses(tenant: Tenant, job: str) -> None:
    samples = (tenant.run_folder(job) / "samples.jsonl").read_text().splitlines()
    assert samples
    for sample in map(json.loads, samples):
        assert sample["rewards"]["game"] == sample["response"].count("b")


def scale(tenant: Tenant, environments: int, rewards: int) -> None:
    changes = {"/spec/rollout/environmentReplicas": environments, "/spec/rewards/0/replicas": rewards}
    patch = [{"op": "replace", "path": path, "value": replicas} for path, replicas in changes.items()]
    tenant.kubectl("patch", "aj", "pools", "--type=json", "-p", json.dumps(patch))


def ready_rewards(tenant: Tenant) -> tuple[int, int]:
    roles = {role["name"]: role for role in tenant.status("pools")["roles"]}
    return roles["reward-letters"]["replicas"], roles["reward-letters"]["ready"]


def test_pods_of_rewards_and_environments_are_lost_and_scaled(tenant: Tenant) -> None:
    episodes = prepare_episodes(tenant, _STEPS, _GAME)
    function = {"configMap": {"name": "games", "key": "game.py", "function": "Letters"}}
    job = episode_job("pools", _STEPS, {"environment": {"function": function}})
    job["spec"]["rewards"][0]["replicas"] = 2
    job["spec"]["rollout"]["environmentReplicas"] = 2
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
    assert_rewards_are_those_of_the_responses(tenant, "pools")


def test_agents_call_the_policy_in_the_pods_of_rollout_workers(tenant: Tenant) -> None:
    episodes = prepare_episodes(tenant, _AGENT_STEPS, _AGENT)
    function = {"configMap": {"name": "games", "key": "game.py", "function": "solve"}}
    job = episode_job("agents", _AGENT_STEPS, {"agent": {"function": function}})
    job["spec"]["rollout"]["replicas"] = 2
    tenant.apply(job)
    tenant.until_beyond("agents", 1, "at the start")
    tenant.until(lambda: len(list(episodes.iterdir())) == 2, "agents in both rollout workers", 120)
    assert {path.name for path in episodes.iterdir()} == {"rollout-0", "rollout-1"}
    lose_pod(tenant, "agents", "rollout-0")
    set_pace(tenant, 0.0)
    tenant.until_phase("agents", "Succeeded", 300)
    assert not tenant.status("agents").get("restarts"), "a deleted pod is no failure"
    assert_each_prompt_once(tenant, "agents", _AGENT_STEPS)
    assert_rewards_are_those_of_the_responses(tenant, "agents")
