"""One attempt at a job that generates data, under one fence: reopens the row file and continues."""

import asyncio
from collections.abc import Sequence

from kubealign_services.bus.contract import Bus
from kubealign_services.data.prepared import Prepared
from kubealign_services.driver.beat import beat
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.grace import Grace
from kubealign_services.driver.making.build import build_maker, rows_per_step
from kubealign_services.driver.making.loop import Making, make_rows
from kubealign_services.driver.making.row_file import RowFile
from kubealign_services.driver.progress import Progress
from kubealign_services.driver.report import Report, Sink
from kubealign_services.driver.watched import unless
from kubealign_services.process.context import Context


async def make_data(
    context: Context,
    prepared: Prepared,
    bus: Bus,
    fence: int,
    sinks: Sequence[Sink],
    progress: Progress,
    grace: Grace,
) -> None:
    """Run the job to its end.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop; the unfinished step is dropped.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
    """
    job, run_dir = context.job, context.settings.run_dir
    report = Report(run_dir / "metrics.jsonl", fence, list(sinks))

    async def work() -> None:
        # Reads every row written so far, so it must not run on the event loop.
        file = await asyncio.to_thread(RowFile, run_dir)
        async with Exchange(bus, fence, grace.stop, progress.waits) as exchange:
            context.heartbeat.describe(lambda: beat(progress, exchange, report))
            run = Making(
                maker=build_maker(job, prepared, exchange),
                file=file,
                report=report,
                rows=len(prepared.train),
                rows_per_step=rows_per_step(job),
                max_steps=job.spec.max_steps,
            )
            progress.max_steps = run.steps
            await make_rows(run)

    await unless(work(), grace.told())
