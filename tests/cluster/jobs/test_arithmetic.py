"""The README's example in real pods: three jobs, each of which uses the result of the job before."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.support.arithmetic import PPO, REWARD_MODEL, SFT, jobs_file, make_data
from cluster.support.redis_view import RedisView, look
from cluster.support.tenant import Tenant

pytestmark = pytest.mark.timeout(3600)

_JOB_SECONDS = 1200.0
# Kinds of all objects of a job.
_OWNED = "pods,services,secrets,configmaps,networkpolicies"
_PPO_ROLES = {
    "prepare",
    "nats",
    "trainer",
    "critic",
    "reference",
    "rollout",
    "reward-preference",
    "reward-exact",
    "driver",
}
_ROW = re.compile(r"^(\S+)\s+(\S+)\s+(\d+)\s+(-?[\d.]+)\s+\S+$")


def ready_roles(tenant: Tenant, job: str) -> set[str]:
    """Return the roles of a job whose processes are all ready or finished."""
    return {role["name"] for role in tenant.status(job).get("roles", []) if role["ready"] == role["replicas"]}


def assert_loads(tenant: Tenant, job: str) -> None:
    """Assert that transformers loads and runs the result at the path in the status."""
    where = tenant.status(job)["result"]
    assert where["claimName"] == "arithmetic"
    folder = tenant.folder / where["path"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("46+37=", return_tensors="pt")
    with torch.no_grad():
        logits = model(**tokens).logits
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    "is_shortened", [True, pytest.param(False, marks=pytest.mark.full)], ids=["shortened", "unchanged"]
)
def test_three_jobs_run_in_order_and_leave_a_model_and_nothing_else(
    tenant: Tenant, tmp_path: Path, is_shortened: bool
) -> None:
    make_data(tenant)
    file, steps = jobs_file(tmp_path, is_shortened)
    watched = tenant.control_plane.kubectl.start("get", "aj", "-w", "-n", tenant.namespace)
    try:
        tenant.kubectl("apply", "-f", str(file))
        tenant.until_message(REWARD_MODEL, f"waits for job {SFT}", seconds=30)
        tenant.until_message(PPO, f"{REWARD_MODEL}, which is Pending", f"{SFT}, which is", seconds=30)
        tenant.until_phase(SFT, "Succeeded", _JOB_SECONDS)
        tenant.until_message(PPO, f"waits for job {REWARD_MODEL}", seconds=30)
        tenant.until_phase(REWARD_MODEL, "Succeeded", _JOB_SECONDS)
        tenant.until_phase(PPO, "Running", _JOB_SECONDS)
        roles = _PPO_ROLES if is_shortened else _PPO_ROLES | {"reward-preferred"}
        tenant.until(lambda: ready_roles(tenant, PPO) == roles, "a pod of every role to serve")
        tenant.until_phase(PPO, "Succeeded", _JOB_SECONDS)
    finally:
        watched.terminate()
        output, _ = watched.communicate(timeout=30)
    rows = [match for line in output.splitlines() if (match := _ROW.match(line))]
    on_the_way = {int(row[3]) for row in rows if row[1] == PPO and row[2] == "Running"}
    assert on_the_way, f"no row of {PPO} with phase, step and reward:\n{output}"
    assert {job: tenant.step(job) for job in steps if job != SFT} == {
        job: count for job, count in steps.items() if job != SFT
    }
    assert 0 < tenant.step(SFT) <= steps[SFT]
    ended = [tenant.status(job)["completionTime"] for job in (SFT, REWARD_MODEL, PPO)]
    started = [tenant.status(job)["startTime"] for job in (SFT, REWARD_MODEL, PPO)]
    assert started[1] >= ended[0] and started[2] >= ended[1], "each begins when what it builds on has ended"
    for job in (SFT, PPO):
        assert_loads(tenant, job)

    tenant.kubectl("delete", "aj", "--all", "--timeout=60s", timeout=70)
    tenant.until(lambda: not tenant.left(_OWNED), "all that belonged to the jobs to be gone")
    tenant.until(
        lambda: look(tenant.control_plane.kubectl) == RedisView((), ()),
        "the jobs' users and keys in Redis to go",
    )
