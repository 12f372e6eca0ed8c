"""Benchmark run of `kubealign bench`: executes a job with `kubealign run` in a subprocess."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kubealign.bench.report import BenchmarkError, BenchmarkReport
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import load_jobs

_ARCHITECTURE = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}
_MODEL = {"config": {"architecture": _ARCHITECTURE, "tokenizer": {"train": {"characters": {}}}}}
_REWARD = '''\
"""The share of the response's characters that are the letter a."""


def reward(prompts, responses, **columns):
    return [response.count("a") / max(1, len(response)) for response in responses]
'''
_LETTERS = "abcdefgh"
_PROMPT_LENGTH = 16
_PROMPTS = 256


def write_benchmark_job(folder: Path) -> Path:
    """Write a PPO job of three models with half a million weights each, its prompts and its reward; return
    the job file.
    """
    rows = [
        {
            "prompt": "".join(
                _LETTERS[(row * 7 + index * (row % 5 + 1)) % 8] for index in range(_PROMPT_LENGTH)
            )
        }
        for row in range(_PROMPTS)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(_REWARD)
    spec: dict[str, Any] = {
        "maxSteps": 1,
        "algorithm": {"ppo": {"promptsPerStep": 32, "samplesPerPrompt": 2, "minibatchSequences": 32}},
        "policy": {"model": _MODEL},
        "critic": {"model": _MODEL},
        "data": {"prompts": {"source": {"path": "prompts.jsonl"}}},
        "rewards": [{"name": "letters", "function": {"file": {"path": "reward.py"}}}],
        # All responses have the same length, so that runs do the same amount of work.
        "rollout": {"sampling": {"maxTokens": 32, "minTokens": 32}},
    }
    document = {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": "bench"},
        "spec": spec,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def run_benchmark(
    file: Path,
    parameters: Mapping[str, str],
    overrides: Sequence[str],
    steps: int,
    warmup: int,
    folder: Path,
) -> BenchmarkReport:
    """Run the one job of the file for `warmup + steps` steps in the folder and report its timings.

    Raises SpecErrors and BenchmarkError.
    """
    override = f"spec.maxSteps={warmup + steps}"
    jobs = load_jobs(file, parameters, [*overrides, override])
    if len(jobs) != 1:
        raise BenchmarkError(f"{file} holds {len(jobs)} jobs: one is measured at a time")
    (job,) = jobs
    runs = folder / "runs"
    command = [sys.executable, "-m", "kubealign.cli.main", "run", str(file), "--runs-dir", str(runs)]
    for name, value in parameters.items():
        command += ["--param", f"{name}={value}"]
    for text in (*overrides, override):
        command += ["--set", text]
    # Progress goes to stderr: stdout is reserved for the measurements.
    environment = os.environ | {"KUBEALIGN_DASHBOARD": "off"}
    completed = subprocess.run(command, stdout=sys.stderr, check=False, env=environment)
    if completed.returncode != 0:
        raise BenchmarkError(
            f"the job did not succeed (exit code {completed.returncode}): nothing was measured"
        )
    lines = (runs / job.name / "metrics.jsonl").read_text().splitlines()
    return BenchmarkReport.from_metrics(_document(job), [json.loads(line) for line in lines], warmup)


def _document(job: AlignmentJob) -> Mapping[str, Any]:
    return job.spec.model_dump(mode="json", by_alias=True, exclude={"max_steps"})
