"""The arithmetic example in a real cluster: applied unchanged, or with fewer steps."""

from pathlib import Path
from typing import Any

import yaml

from .host_bind import HOST_BIND
from .tenant import Tenant

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "arithmetic"

SFT, REWARD_MODEL, PPO = "arithmetic-sft", "arithmetic-rm", "arithmetic-ppo"
# Enough steps and rows to see the metrics change; too few to learn anything.
_FEWER_STEPS = {SFT: 24, REWARD_MODEL: 12, PPO: 6}
_ROWS, _VALIDATION_ROWS, _PROMPTS_PER_STEP = 640, 64, 32
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


def jobs_file(folder: Path, is_shortened: bool) -> tuple[Path, dict[str, int]]:
    """Return a file for `kubectl apply -f`, and the steps of each of its jobs.

    A shortened file has fewer steps, rows and pods than the example's own: SFT is not validated, and PPO is
    validated by one score."""
    example = EXAMPLE / "cluster.yaml"
    jobs = list(yaml.safe_load_all(example.read_text()))
    if not is_shortened:
        return example, _steps(jobs)
    for job in jobs:
        spec = job["spec"]
        spec["maxSteps"] = _FEWER_STEPS[job["metadata"]["name"]]
        validation = spec["validation"]
        for data, rows in ((spec["data"], _ROWS), (validation["data"], _VALIDATION_ROWS)):
            for dataset in data.values():
                dataset["limit"] = rows
        if "sft" in spec["algorithm"]:
            del spec["validation"], spec["rollout"]
        if ppo := spec["algorithm"].get("ppo"):
            ppo |= {"promptsPerStep": _PROMPTS_PER_STEP, "minibatchSequences": _PROMPTS_PER_STEP // 2}
            del validation["sampling"]["scores"][0]
        if "everySteps" in validation:
            validation["everySteps"] = spec["maxSteps"] // 2
    shortened = folder / "cluster.yaml"
    shortened.write_text(yaml.safe_dump_all(jobs, sort_keys=False))
    return shortened, _steps(jobs)


def _steps(jobs: list[Any]) -> dict[str, int]:
    return {job["metadata"]["name"]: job["spec"]["maxSteps"] for job in jobs}
