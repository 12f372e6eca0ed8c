"""The arithmetic example in a real cluster: applied unchanged, or with fewer steps."""

import os
from pathlib import Path
from typing import Any

import yaml

from .host_bind import HOST_BIND
from .tenant import Tenant

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "arithmetic"
#: Set to 1, this variable runs the three jobs unchanged, which takes about ten minutes more.
WHOLE = "KUBEALIGN_WHOLE_EXAMPLES"

SFT, REWARD_MODEL, PPO = "arithmetic-sft", "arithmetic-rm", "arithmetic-ppo"
# Enough steps to see the metrics change; too few to learn anything.
_FEWER_STEPS = {SFT: 60, REWARD_MODEL: 40, PPO: 6}
_DATA_SECONDS = 120


def make_data(tenant: Tenant) -> None:
    """Make the ConfigMap and run the Job that fills the volume, as README.md does before the jobs."""
    files = [f"--from-file={EXAMPLE / name}" for name in ("rewards.py", "make_data.py")]
    tenant.kubectl("create", "configmap", "arithmetic", *files)
    claim, job = yaml.safe_load_all((EXAMPLE / "data.yaml").read_text())
    # The tenant has its volume already: this cluster provisions none.
    assert claim["kind"] == "PersistentVolumeClaim"
    container = job["spec"]["template"]["spec"]["containers"][0]
    container |= {"image": HOST_BIND, "imagePullPolicy": "Never"}
    tenant.apply(job)
    name = job["metadata"]["name"]
    tenant.control_plane.kubectl.wait_for(
        f"job/{name}", "condition=complete", namespace=tenant.namespace, seconds=_DATA_SECONDS
    )


def jobs_file(folder: Path) -> tuple[Path, dict[str, int]]:
    """Return a file for `kubectl apply -f`, and the steps of each of its jobs.

    The example's own file is returned where KUBEALIGN_WHOLE_EXAMPLES is 1. Otherwise a copy has fewer steps,
    and validates SFT twice, with an early stop that SFT cannot reach."""
    example = EXAMPLE / "cluster.yaml"
    jobs = list(yaml.safe_load_all(example.read_text()))
    if os.environ.get(WHOLE) == "1":
        return example, _steps(jobs)
    for job in jobs:
        spec = job["spec"]
        spec["maxSteps"] = _FEWER_STEPS[job["metadata"]["name"]]
        if "everySteps" in spec["validation"]:
            spec["validation"]["everySteps"] = spec["maxSteps"] // 2
    shortened = folder / "cluster.yaml"
    shortened.write_text(yaml.safe_dump_all(jobs, sort_keys=False))
    return shortened, _steps(jobs)


def _steps(jobs: list[Any]) -> dict[str, int]:
    return {job["metadata"]["name"]: job["spec"]["maxSteps"] for job in jobs}
