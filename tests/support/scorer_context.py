"""The part of a process's context that scorers use."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kubealign.spec.job import AlignmentJob
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.replica_ranks import ReplicaRanks
from kubealign_services.training.commands.rank_group import CommandGroup


class ScorerContext:
    """Computes on the caller's thread. `settings.name` is the worker's name. With a job: run directory."""

    logger = logging.getLogger("scorer")

    def __init__(self, worker: str, job: AlignmentJob | None = None, run_dir: Path | None = None) -> None:
        self.settings = SimpleNamespace(name=worker, run_dir=run_dir, rank=0, world_size=1)
        self.job = job
        self.ready = False

    async def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def with_deadline(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    async def compute_within_deadline(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def scorer_context(
    worker: str, job: AlignmentJob | None = None, run_dir: Path | None = None
) -> ProcessContext:
    return cast(ProcessContext, ScorerContext(worker, job, run_dir))


def single_rank(context: ProcessContext) -> ReplicaRanks:
    """Return the ranks of a replica that has one; within an event loop."""
    return ReplicaRanks(context, CommandGroup(0, 1, None, 1.0))
