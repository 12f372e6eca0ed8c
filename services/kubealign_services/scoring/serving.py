"""Main loop of every scorer process: pulls rollouts from the bus and answers direct calls."""

from collections.abc import Container, Coroutine
from typing import Any

from kubealign.roles import roles
from kubealign.spec.job import AlignmentJob
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.scoring.worker import MAX_PULL_COUNT, Scorer, ScoreWorker


async def serve_scorer(
    context: ProcessContext,
    consumer: str,
    purposes: frozenset[str],
    scorer: Scorer,
    servicer: object,
    *others: Coroutine[Any, Any, None],
    prompts: Container[str] | None = None,
    calls: int = 1,
    most_samples: int = MAX_PULL_COUNT,
) -> None:
    """Score until stopped.

    Args:
        consumer: As in ScoreWorker; the name of the process group.
        purposes: As in ScoreWorker.
        others: Run concurrently; the first one that ends, ends the scorer with its error.
        prompts: As in ScoreWorker.
        calls: Calls of the scorer at a time, each of which pulls its own rollouts.
        most_samples: Most rollouts of a call.
    """
    async with context.bus() as bus, context.serve([servicer]):
        count = min(most_samples, pull_count(calls * count_replicas(context.job, consumer)))
        worker = ScoreWorker(bus, consumer, purposes, scorer, count, prompts)
        context.heartbeat.set_fields(worker.heartbeat)
        await run_until_stopped(context.stop, *(worker.run() for _ in range(calls)), *others)


def count_replicas(job: AlignmentJob, group: str) -> int:
    """Return the number of replicas in a group of scorers, each of which pulls with its rank 0."""
    return sum(process.group == group and process.serves for process in roles(job))


def pull_count(calls: int) -> int:
    """Return how many rollouts each of several calls at a time pulls.

    A call that pulled all waiting rollouts would leave none for the others.
    """
    return max(1, MAX_PULL_COUNT // max(1, calls))
