"""Writes rows of prompts from the environment of a job, one for each seed.

    python -m kubealign_services.environments.rows jobs.yaml --job NAME --rows 1000 --seed 1 > prompts.jsonl

A row has the first observation as its prompt (with `observation: Chat` as `messages`), and the seed of the
environment as the column `seed`, from which an episode creates the same task again.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import load_jobs
from kubealign.spec.workflows.environments import EnvironmentSpec, ObservationFormat
from kubealign_services.environments.contract import EnvironmentFailed, Observation
from kubealign_services.environments.pool import EnvironmentPool


async def generate_rows(spec: EnvironmentSpec, seeds: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
    """Yield the row of each seed, in order.

    Raises:
        EnvironmentFailed: The environment cannot be created or reset, or shows nothing at its start.
    """
    is_chat = spec.observation is ObservationFormat.CHAT
    async with EnvironmentPool(spec) as pool:
        for start in range(0, len(seeds), spec.concurrency):
            chunk = seeds[start : start + spec.concurrency]
            tasks = (_observe(pool, seed) for seed in chunk)
            # The error that is raised is that of the first seed, whichever task fails first.
            observed = await asyncio.gather(*tasks, return_exceptions=True)
            for seed, observation in zip(chunk, observed, strict=True):
                if isinstance(observation, BaseException):
                    raise observation
                yield _make_row(observation, seed, is_chat=is_chat)


async def _observe(pool: EnvironmentPool, seed: int) -> Observation:
    async with pool.open(seed, {}) as session:
        if not session.observation:
            raise EnvironmentFailed(
                f"the environment shows nothing at its start (seed {seed}): write the prompts yourself, "
                "with a column seed where tasks differ",
                permanent=True,
            )
        return session.observation


def _make_row(observation: Observation, seed: int, *, is_chat: bool) -> dict[str, Any]:
    if not is_chat:
        return {"prompt": observation.plain_text(), "seed": seed}
    messages: Sequence[Mapping[str, str]] = observation.messages or [
        {"role": "user", "content": observation.text}
    ]
    return {"messages": [dict(message) for message in messages], "seed": seed}


def _find_job(jobs: Sequence[AlignmentJob], name: str | None) -> EnvironmentSpec:
    """Return the environment of the named job, else of the only job that has one. Raises LookupError."""
    environments = {
        job.metadata.name: job.spec.rollout.workflow.environment
        for job in jobs
        if job.spec.rollout.workflow is not None and job.spec.rollout.workflow.environment is not None
    }
    names = ", ".join(environments) or "none"
    if name is not None and name not in environments:
        raise LookupError(f"--job {name}: no job of this name has an environment; those that have: {names}")
    if name is None and len(environments) != 1:
        raise LookupError(f"--job is required unless one job has an environment; those that have: {names}")
    environment = environments[name] if name is not None else next(iter(environments.values()))
    assert environment is not None
    return environment


async def _write(spec: EnvironmentSpec, seeds: Sequence[int]) -> None:
    async for row in generate_rows(spec, seeds):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kubealign_services.environments.rows",
        description="Write rows of prompts from the environment of a job to standard output.",
    )
    parser.add_argument("file", type=Path, help="file of jobs")
    parser.add_argument("--job", help="job with the environment; required if several have one")
    parser.add_argument("--rows", type=int, default=1000, help="number of rows")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first row; the next has the next")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="parameter of the file"
    )
    options = parser.parse_args(argv)
    if options.rows < 1:
        parser.error(f"--rows {options.rows}: must be at least 1")
    parameters = dict(entry.partition("=")[::2] for entry in options.param)
    try:
        spec = _find_job(load_jobs(options.file, parameters), options.job)
        asyncio.run(_write(spec, range(options.seed, options.seed + options.rows)))
    except (SpecErrors, LookupError, EnvironmentFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
