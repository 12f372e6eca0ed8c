"""AlignmentJobs that perform a workload."""

from pathlib import Path
from typing import Any

from tests.bench.workload import MODEL, PROMPTS, REWARD, REWARD_MODEL, WORKFLOW, Workload


def online(workload: Workload, folder: Path, name: str, steps: int) -> dict[str, Any]:
    """Return a job that learns from its own samples. folder: output folder of `Workload.write`."""
    method: dict[str, Any] = {
        "promptsPerStep": workload.prompts_per_step,
        "samplesPerPrompt": workload.samples_per_prompt,
        "maxStaleness": workload.max_staleness,
        "kl": {"fixed": {"coefficient": 0.05 if workload.method == "ppo" else 0.0}},
    }
    spec = _spec(workload, folder, steps)
    spec |= {
        "algorithm": {workload.method: method},
        "data": {"prompts": {"source": {"path": str(folder / PROMPTS)}, "shuffle": False}},
        "rewards": [_reward(workload, folder)],
        "rollout": {
            "engine": {"torch": {"maxSequences": workload.sequences}},
            "sampling": {"minTokens": workload.most_tokens, "maxTokens": workload.most_tokens},
        },
    }
    if workload.longest is not None:
        file = {"path": str(folder / WORKFLOW), "name": "workflow"}
        spec["rollout"]["workflow"] = {"function": {"file": file}}
    if workload.method == "ppo":
        method["gae"] = {"lambda": 0.95}  # TRL's lam
        spec["critic"] = {"optimizer": spec["trainer"]["optimizer"]}
    return _job(name, spec)


def offline(
    workload: Workload, folder: Path, name: str, steps: int, rows: Path, rows_per_step: int
) -> dict[str, Any]:
    """Return a job that learns from rows with `prompt` and `response` (sft), or with `prompt`, `chosen` and
    `rejected` (dpo)."""
    data = "demonstrations" if workload.method == "sft" else "preferences"
    spec = _spec(workload, folder, steps)
    spec |= {
        "algorithm": {workload.method: {"rowsPerStep": rows_per_step}},
        "data": {data: {"source": {"path": str(rows)}, "shuffle": False}},
    }
    return _job(name, spec)


def _reward(workload: Workload, folder: Path) -> dict[str, Any]:
    if workload.method == "ppo":
        return {"name": "judge", "model": {"path": str(folder / REWARD_MODEL)}}
    return {"name": "even", "function": {"file": {"path": str(folder / REWARD), "name": "reward"}}}


def _spec(workload: Workload, folder: Path, steps: int) -> dict[str, Any]:
    return {
        "seed": workload.seed,
        "maxSteps": steps,
        "policy": {"model": {"path": str(folder / MODEL)}},
        "trainer": {"optimizer": {"adamW": {"learningRate": workload.learning_rate}}},
        "checkpoint": {"everySteps": steps + 1},
    }


def _job(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": spec,
    }
