"""Main loop of every scorer process: pulls rollouts from the bus and answers direct calls."""

from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.scoring.worker import Scorer, ScoreWorker


async def serve_scorer(
    context: ProcessContext, consumer: str, purposes: frozenset[str], scorer: Scorer, servicer: object
) -> None:
    """Score until stopped.

    Args:
        consumer: As in ScoreWorker.
        purposes: As in ScoreWorker.
    """
    async with context.bus() as bus, context.serve([servicer]):
        worker = ScoreWorker(bus, consumer, purposes, scorer)
        context.heartbeat.set_fields(worker.heartbeat)
        await run_until_stopped(context.stop, worker.run())
