"""Command line and settings that every run of TRL's side has. Imports nothing of kubealign."""

import argparse
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from tests.bench.peers.trl_settings import common_settings


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Args:
        out: Metrics by step, as JSON lines with the names of kubealign's metrics.
        job: File of the AlignmentJob, whose settings TRL gets too.
        data: Folder with the rows.
    """

    recipe: str
    job: Path
    model: Path
    data: Path
    steps: int
    seed: int
    out: Path
    reward_model: Path | None = None
    teacher: Path | None = None

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The job's spec. Its parameters, such as paths, are not replaced."""
        spec: dict[str, Any] = yaml.safe_load(self.job.read_text())["spec"]
        return spec

    @property
    def algorithm(self) -> dict[str, Any]:
        """Settings of the job's algorithm."""
        (settings,) = self.spec["algorithm"].values()
        return dict(settings)

    @property
    def max_tokens(self) -> int:
        """Longest response in tokens."""
        return int(self.spec["rollout"]["sampling"]["maxTokens"])


def parse_options() -> RunOptions:
    """Parse the command line. Raises RuntimeError unless torch uses every available core."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    for name in ("job", "model", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("reward-model", "teacher"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = RunOptions(**vars(parser.parse_args()))
    # By default accelerate uses one thread for each core that it believes physical.
    cores = len(os.sched_getaffinity(0))
    if torch.get_num_threads() != cores:
        raise RuntimeError(f"TRL would compute with {torch.get_num_threads()} of {cores} cores")
    return options


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def training_settings(options: RunOptions, sequences: int, microbatch: int) -> dict[str, Any]:
    """Return arguments of transformers' trainers.

    Args:
        sequences: Rows or sequences of an optimiser step.
        microbatch: Rows or sequences of a forward pass.
    """
    optimizer = options.spec["trainer"]["optimizer"]
    if optimizer["schedule"] != {"constant": {}}:
        raise ValueError(f"{options.job}: trainer.optimizer.schedule must be constant, without warm-up")
    settings = common_settings(options.out.parent / "trl", options.seed, optimizer["adamW"]["learningRate"])
    return settings | {
        "per_device_train_batch_size": microbatch,
        "gradient_accumulation_steps": sequences // microbatch,
        "logging_steps": 1,
    }
