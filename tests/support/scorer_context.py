"""The part of a process's context that scorers use."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kubealign.spec.job import AlignmentJob
from kubealign_services.runtime.process.context import ProcessContext


class ScorerContext:
    """Computes on the caller's thread. `settings.name` is the worker's name. With a job: run directory."""

    logger = logging.getLogger("scorer")

    def __init__(self, worker: str, job: AlignmentJob | None = None, run_dir: Path | None = None) -> None:
        self.settings = SimpleNamespace(name=worker, run_dir=run_dir)
        self.job = job

    async def compute(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def scorer_context(
    worker: str, job: AlignmentJob | None = None, run_dir: Path | None = None
) -> ProcessContext:
    return cast(ProcessContext, ScorerContext(worker, job, run_dir))
