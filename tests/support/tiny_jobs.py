"""Jobs small enough for tests: a Llama of a few thousand weights on characters, and its data."""

import json
from pathlib import Path
from typing import Any

import yaml

ARCHITECTURE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FROM_CONFIG: dict[str, Any] = {
    "config": {"architecture": ARCHITECTURE, "tokenizer": {"train": {"characters": {}}}}
}

#: A reward function: the share of the letter a in the response.
LETTER_A = """
def reward(prompts, responses, **columns):
    return [response.count("a") / max(1, len(response)) for response in responses]
"""

#: The same reward; each call sleeps for the seconds in the file.
PACED_LETTER_A = """
import pathlib
import time

def reward(prompts, responses, **columns):
    time.sleep(float(pathlib.Path({file!r}).read_text()))
    return [response.count("a") / max(1, len(response)) for response in responses]
"""


def set_pace(folder: Path, seconds: float) -> Path:
    """Set the seconds that each call of the paced reward takes from now on. Return the file."""
    path, draft = folder / "pace", folder / ".pace"
    draft.write_text(str(seconds))
    draft.replace(path)
    return path


def write_prompts(folder: Path, count: int = 40) -> Path:
    """Write distinct prompts of two letters from an alphabet of eight. Return the file."""
    letters = "abcdefgh"
    rows = [{"prompt": letters[i // 8 % 8] + letters[i % 8]} for i in range(count)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_reward(folder: Path, source: str = LETTER_A, name: str = "letters") -> dict[str, Any]:
    """Write a reward function and return its entry of spec.rewards."""
    path = folder / f"{name}.py"
    path.write_text(source)
    return {"name": name, "function": {"file": {"path": str(path), "name": "reward"}}}


def online_job(folder: Path, name: str, algorithm: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a job that learns to write the letter a; `spec` replaces fields of its spec."""
    parts: dict[str, Any] = {
        "maxSteps": 10,
        "algorithm": algorithm,
        "policy": {"model": FROM_CONFIG},
        "data": {"prompts": {"source": {"path": str(write_prompts(folder))}}},
        "trainer": {"optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        "rewards": [write_reward(folder)],
        "rollout": {"engine": {"torch": {"maxSequences": 64}}, "sampling": {"maxTokens": 4}},
        "checkpoint": {"everySteps": 3},
    }
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": parts | spec,
    }


def sft_job(folder: Path, name: str, **spec: Any) -> dict[str, Any]:
    """Return a job that learns to repeat the second letter in four steps; `spec` replaces fields of its
    spec."""
    rows = [{"prompt": a + b, "response": b} for a in "abcd" for b in "abcd"]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts: dict[str, Any] = {
        "maxSteps": 4,
        "algorithm": {"sft": {"rowsPerStep": 8}},
        "policy": {"model": FROM_CONFIG},
        "data": {"demonstrations": {"source": {"path": str(path)}, "format": {"text": {}}}},
        "trainer": {"optimizer": {"adamW": {"learningRate": 1.0e-6}}},
    }
    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": parts | spec,
    }


def write_jobs(folder: Path, *jobs: dict[str, Any]) -> Path:
    """Write the jobs to one file and return it."""
    path = folder / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(jobs, sort_keys=False))
    return path
