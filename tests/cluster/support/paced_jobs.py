"""Small jobs for real pods, with a step duration that the test may change at any time in a file."""

from pathlib import Path
from typing import Any

from support.chaos.checker import check_history
from support.chaos.job import PROMPTS_PER_STEP
from support.tiny_jobs import FROM_CONFIG, write_prompts

from .behaviour import Json
from .tenant import CLAIM, Tenant

_FUNCTIONS = "functions"
_PACE = "pace"

# Each scoring takes as long as the file says, so that the test controls the speed of the job.
_REWARD = f"""
import time
from pathlib import Path

def reward(prompts, responses, **columns):
    time.sleep(float(Path("/volumes/{CLAIM}/{_PACE}").read_text()))
    return [response.count("a") / max(1, len(response)) for response in responses]
"""


def prepare(tenant: Tenant, steps: int) -> None:
    """Write the data of `steps` steps, the reward function, and a slow pace."""
    write_prompts(tenant.folder, steps * PROMPTS_PER_STEP)
    set_pace(tenant, 1.0)
    function = {"kind": "ConfigMap", "metadata": {"name": _FUNCTIONS}, "data": {"reward.py": _REWARD}}
    tenant.apply({"apiVersion": "v1", **function})


def set_pace(tenant: Tenant, seconds: float) -> None:
    """Set the delay of each scoring to `seconds`."""
    replacement = tenant.folder / f".{_PACE}"
    replacement.write_text(str(seconds))
    replacement.chmod(0o644)
    replacement.rename(tenant.folder / _PACE)


def paced_job(name: str, steps: int, **spec: Any) -> Json:
    """Return a job with every role but critic and reference. Fields in `spec` replace the defaults."""
    source = {"volume": {"claimName": CLAIM, "path": "prompts.jsonl"}}
    function = {"configMap": {"name": _FUNCTIONS, "key": "reward.py", "function": "reward"}}
    parts: dict[str, Any] = {
        "maxSteps": steps,
        # No KL penalty, so no reference: one process fewer that imports torch.
        "algorithm": {
            "rloo": {
                "promptsPerStep": PROMPTS_PER_STEP,
                "samplesPerPrompt": 2,
                "kl": {"fixed": {"coefficient": 0.0}},
            }
        },
        "policy": {"model": FROM_CONFIG},
        "data": {"prompts": {"source": source}},
        "trainer": {"optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        "rewards": [{"name": "letters", "function": function}],
        "rollout": {"engine": {"torch": {"maxSequences": 64}}, "sampling": {"maxTokens": 4}},
        "checkpoint": {"everySteps": 3, "volume": {"claimName": CLAIM, "path": "runs"}},
        # A bus that gets SIGTERM while it starts ignores the signal.
        "lifecycle": {"gracePeriodSeconds": 10},
        "podTemplate": _resources(
            {"requests": {"cpu": "50m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}}
        ),
    }
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": parts | spec,
    }


def container(**fields: Any) -> Json:
    """Return a pod template that sets fields of every container of a job."""
    return {"spec": {"containers": [{"name": "main", **fields}]}}


def _resources(resources: Json) -> Json:
    return container(resources=resources)


def assert_each_prompt_once(tenant: Tenant, job: str, steps: int) -> None:
    """Assert that every step was done once, and that every prompt of the epoch was trained once."""
    check_history(tenant.run_folder(job), steps)
    assert _result(tenant, job).exists()


def _result(tenant: Tenant, job: str) -> Path:
    return tenant.run_folder(job) / "result" / "config.json"
