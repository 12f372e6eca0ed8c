"""One attempt at an evaluation, under one fence: reads what earlier attempts have measured and continues."""

import asyncio
from collections.abc import Sequence

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.messaging.contract import Bus
from kubealign_services.roles.driver.builder import ValidationContext, build_measurements
from kubealign_services.roles.driver.cancellation import run_until_any, wait_until_replaced
from kubealign_services.roles.driver.evaluation.loop import EvaluationRun, measure_models
from kubealign_services.roles.driver.evaluation.record import EVALUATION_FOLDER, EvaluationRecord
from kubealign_services.roles.driver.judging.builder import open_policy_judges
from kubealign_services.roles.driver.metrics.progress import ProgressTracker, heartbeat_payload
from kubealign_services.roles.driver.metrics.report import MetricSink, MetricsReport
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.roles.driver.validation.saved_groups import SavedGroups
from kubealign_services.runtime.process.context import ProcessContext


async def evaluate_models(
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
        ShutdownRequested: The driver was asked to stop; saved responses are not sampled again.
        StaleFence: Another driver has taken over.
        BusUnavailable: The connection to the message bus was lost.
    """
    spec, run_dir = context.job.spec, context.settings.run_dir
    report = MetricsReport(run_dir / "metrics.jsonl", fence, list(sinks))
    run_fence = Fence(run_dir, fence)

    async def work() -> None:
        record = await asyncio.to_thread(EvaluationRecord, run_fence)
        folder = run_dir / EVALUATION_FOLDER
        saved = {
            rows.name: SavedGroups(folder if rows.name is None else folder / rows.name, run_fence)
            for rows in spec.held_out_rows
        }
        async with (
            RolloutCollector(bus, fence, deadline.stop, progress.report_wait) as collector,
            open_policy_judges(context.job, prepared, collector),
        ):
            context.heartbeat.set_fields(lambda: heartbeat_payload(progress, collector, report))
            measured = ValidationContext(
                job=context.job,
                prepared=prepared,
                run_dir=run_dir,
                collector=collector,
                critic=None,
                previews=SamplePreviews.of_job(spec, prepared),
            )
            validation = build_measurements(measured, _wait_for_nothing, report, saved=saved)
            await measure_models(EvaluationRun(spec, validation, record, saved))

    await run_until_any(work(), deadline.wait_for_request(), wait_until_replaced(run_fence))


async def _wait_for_nothing(version: int) -> None:
    """Return at once: workers load the version that a work item asks for."""
