"""Writes the rows of a job from its environment of verifiers, one for each task.

    python -m kubealign_services.agents.verifiers.rows jobs.yaml --job NAME --rows 1000 > prompts.jsonl

A row has the task's prompt as `messages`, and the columns that name the task.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import load_jobs
from kubealign.spec.workflows.agents import VerifiersEnvironment
from kubealign_services.agents.verifiers.environment import load_config
from kubealign_services.agents.verifiers.tasks import TaskTable, make_row
from kubealign_services.environments.contract import EnvironmentFailed


def generate_rows(spec: VerifiersEnvironment, first: int, count: int | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of tasks in their order.

    Args:
        first: Position of the first task, from 0. count: number of rows at most; None: all tasks.

    Raises:
        EnvironmentFailed: The environment cannot be loaded, it has no such task, or its tasks do not end.
    """
    config = load_config(spec)
    taskset = config.load_taskset()
    if count is None and not taskset.bounded:
        raise EnvironmentFailed("its tasks do not end: give --rows", permanent=True)
    tasks = TaskTable(taskset)
    index = first
    while count is None or index < first + count:
        task = tasks.get(index)
        if task is None:
            break
        yield make_row(task)
        index += 1
    if index == first:
        raise EnvironmentFailed(f"has no task {first} (--first)", permanent=True)


def _find_job(jobs: Sequence[AlignmentJob], name: str | None) -> VerifiersEnvironment:
    """Return the environment of the named job, else of the only job that has one. Raises LookupError."""
    environments = {
        job.metadata.name: job.spec.rollout.workflow.agent.verifiers
        for job in jobs
        if job.spec.rollout.workflow is not None
        and job.spec.rollout.workflow.agent is not None
        and job.spec.rollout.workflow.agent.verifiers is not None
    }
    names = ", ".join(environments) or "none"
    if name is not None and name not in environments:
        raise LookupError(
            f"--job {name}: no job of this name has an environment of verifiers; those that have: {names}"
        )
    if name is None and len(environments) != 1:
        raise LookupError(
            f"--job is required unless one job has an environment of verifiers; those that have: {names}"
        )
    return environments[name] if name is not None else next(iter(environments.values()))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kubealign_services.agents.verifiers.rows",
        description="Write the rows of a job with an environment of verifiers to standard output.",
    )
    parser.add_argument("file", type=Path, help="file of jobs")
    parser.add_argument("--job", help="job with the environment; required if several have one")
    parser.add_argument("--rows", type=int, help="number of rows; default: one for each task")
    parser.add_argument("--first", type=int, default=0, help="position of the first task, from 0")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="parameter of the file"
    )
    options = parser.parse_args(argv)
    if options.rows is not None and options.rows < 1:
        parser.error(f"--rows {options.rows}: must be at least 1")
    if options.first < 0:
        parser.error(f"--first {options.first}: must be at least 0")
    parameters = dict(entry.partition("=")[::2] for entry in options.param)
    try:
        spec = _find_job(load_jobs(options.file, parameters), options.job)
    except (SpecErrors, LookupError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    try:
        for row in generate_rows(spec, options.first, options.rows):
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
    except EnvironmentFailed as error:
        sys.stderr.write(f"verifiers {spec.taskset} {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
