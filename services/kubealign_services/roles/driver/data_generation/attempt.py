"""One attempt at a job that generates data, under one fence: reopens the row file and continues."""

import asyncio
from collections.abc import Sequence

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.messaging.contract import Bus
from kubealign_services.roles.driver.cancellation import run_until_any, wait_until_replaced
from kubealign_services.roles.driver.data_generation.builder import build_row_maker, rows_per_step
from kubealign_services.roles.driver.data_generation.loop import DataGenerationRun, make_rows
from kubealign_services.roles.driver.data_generation.row_file import RowFile
from kubealign_services.roles.driver.metrics.progress import ProgressTracker, heartbeat_payload
from kubealign_services.roles.driver.metrics.report import MetricSink, MetricsReport
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.runtime.process.context import ProcessContext


async def generate_data(
    context: ProcessContext,
    prepared: PreparedJob,
    bus: Bus,
    fence: int,
    sinks: Sequence[MetricSink],
    progress: ProgressTracker,
    deadline: ShutdownDeadline,
) -> None:
    """Run the job to its end.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop; the unfinished step is dropped.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
    """
    job, run_dir = context.job, context.settings.run_dir
    report = MetricsReport(run_dir / "metrics.jsonl", fence, list(sinks))

    async def work() -> None:
        # Reads every row written so far, so it must not run on the event loop.
        file = await asyncio.to_thread(RowFile, run_dir)
        async with RolloutCollector(bus, fence, deadline.stop, progress.report_wait) as collector:
            context.heartbeat.set_fields(lambda: heartbeat_payload(progress, collector, report))
            run = DataGenerationRun(
                maker=build_row_maker(job, prepared, collector),
                file=file,
                report=report,
                rows=len(prepared.train),
                rows_per_step=rows_per_step(job),
                total_steps=prepared.total_steps(job.spec),
            )
            await make_rows(run)

    await run_until_any(work(), deadline.wait_for_request(), wait_until_replaced(Fence(run_dir, fence)))
