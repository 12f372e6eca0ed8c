"""Driver process of a job: `python -m kubealign_services.roles.driver.main SETTINGS.json`."""

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from kubealign.backoff import restart_backoff
from kubealign.process_settings import Role
from kubealign.v1 import critic_pb2_grpc, trainer_pb2_grpc
from kubealign_services.checkpoints.fence import Fence, acquire_fence
from kubealign_services.checkpoints.remote.uploader import CheckpointUploader
from kubealign_services.data.prepared import load_prepared
from kubealign_services.data.prepared_files import read_routing_record_bytes
from kubealign_services.messaging.contract import Bus, BusUnavailable
from kubealign_services.roles.driver.attempt import run_attempt
from kubealign_services.roles.driver.cancellation import run_until_any
from kubealign_services.roles.driver.checkpoint_upload import begin_uploads, publish_result, run_uploader
from kubealign_services.roles.driver.data_generation.attempt import generate_data
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.evaluation.attempt import evaluate_models
from kubealign_services.roles.driver.metrics.progress import DriverServicer, ProgressTracker
from kubealign_services.roles.driver.metrics.report import MetricSink
from kubealign_services.roles.driver.metrics.sample_logging import PREVIEWS_PER_STEP, SampleFile
from kubealign_services.roles.driver.metrics.trackers import run_trackers
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure, find_storage_failure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.runtime.rpc.client import Peer
from kubealign_services.runtime.rpc.errors import OutOfOrder, Unreachable
from kubealign_services.weights.announce.coordinator import RefitFailed

#: Errors that a restart from the last checkpoint may fix: a role that was restarted, a message bus that was
#: unreachable, or processes that did not take part in a refit in time.
RECOVERABLE_ERRORS = (Unreachable, OutOfOrder, BusUnavailable, RefitFailed)
_READY_TIMEOUT_SECONDS = 300.0
#: Consecutive attempts without a finished step before the job fails.
_MAX_FRUITLESS_ATTEMPTS = 5

log = logging.getLogger(__name__)


class TelemetrySink:
    """Metric sink for Prometheus and the read model of the displays.

    `latest_step` is the newest step reported.
    """

    def __init__(self, context: ProcessContext, progress: ProgressTracker) -> None:
        self._context = context
        self._progress = progress
        self.latest_step = -1

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of a step."""
        self.latest_step = max(self.latest_step, step)
        self._context.metrics.set_step(metrics)
        self._context.read_model.add_metrics(step, fence, metrics)
        self._progress.report_step(step)

    def samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Publish a few samples of a step to the read model."""
        for sample in samples[:PREVIEWS_PER_STEP]:
            self._context.read_model.add_sample(step, sample)

    def validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Publish the responses of a validation to the read model."""
        self._context.read_model.add_validation_samples(step, fence, samples)


async def serve(context: ProcessContext) -> None:
    """Run the job to its end. Restarts from the last checkpoint whenever the connection to a role is lost.

    Raises StaleFence once another driver has taken over; the displays then belong to that driver.
    """
    settings, spec = context.settings, context.job.spec
    progress = ProgressTracker(spec.known_steps(), context.read_model, trains=spec.algorithm.value.trains)
    grace = ShutdownDeadline(context.stop, spec.lifecycle.grace_period_seconds)
    try:
        async with AsyncExitStack() as stack:
            trainer = None
            if "trainer" in settings.peers:
                trainer = await stack.enter_async_context(
                    Peer(
                        "trainer",
                        settings.peers["trainer"],
                        settings.tls,
                        trainer_pb2_grpc.TrainerStub,
                        Role.TRAINER,
                    )
                )
            critic = None
            if "critic" in settings.peers:
                critic = await stack.enter_async_context(
                    Peer(
                        "critic",
                        settings.peers["critic"],
                        settings.tls,
                        critic_pb2_grpc.CriticStub,
                        Role.CRITIC,
                    )
                )
            bus = await run_until_any(stack.enter_async_context(context.bus()), grace.wait_for_request())
            await stack.enter_async_context(context.serve([DriverServicer(progress)]))
            await run_job(context, bus, trainer, critic, progress, grace)
        progress.report_end("Succeeded")
    except ShutdownRequested:
        progress.report_end("Stopped")
    except UnrecoverableError as error:
        progress.report_end("Failed", str(error))
        raise PermanentFailure(str(error)) from error


async def run_job(
    context: ProcessContext,
    bus: Bus,
    trainer: Peer | None,
    critic: Peer | None,
    progress: ProgressTracker,
    deadline: ShutdownDeadline,
) -> None:
    """Open the trackers and run attempts until the job ends.

    Args:
        trainer: None for a job that generates data or evaluates.

    Raises:
        ShutdownRequested: The driver was asked to stop.
        StaleFence: Another driver has taken over.
        UnrecoverableError: The job cannot succeed.
    """
    async with run_trackers(context) as trackers, run_uploader(context, deadline) as uploader:
        telemetry = TelemetrySink(context, progress)
        samples = SampleFile(context.settings.run_dir / "samples.jsonl")
        await _run_attempts(
            context, bus, trainer, critic, progress, deadline, telemetry, [samples, *trackers], uploader
        )


async def _run_attempts(
    context: ProcessContext,
    bus: Bus,
    trainer: Peer | None,
    critic: Peer | None,
    progress: ProgressTracker,
    deadline: ShutdownDeadline,
    telemetry: TelemetrySink,
    other_sinks: Sequence[MetricSink],
    uploader: CheckpointUploader | None,
) -> None:
    """Run one attempt after another, each under a new fence, until one ends without a recoverable error."""
    prepared = load_prepared(context.settings.run_dir)
    progress.max_steps = prepared.total_steps(context.job.spec)
    sinks: list[MetricSink] = [telemetry, *other_sinks]
    fruitless = 0
    fence: int | None = None
    backoff = restart_backoff()
    while True:
        before = telemetry.latest_step
        try:
            fence = acquire_fence(context.settings.run_dir, after=fence)
            progress.report_attempt(fence)
            if uploader is not None:
                await run_until_any(begin_uploads(uploader, fence), deadline.wait_for_request())
            record_bytes = read_routing_record_bytes(context.settings.run_dir)
            check_payload_limits(context.job, prepared.report, bus.max_payload, record_bytes)
            for peer in (trainer, critic):
                if peer is not None:
                    await run_until_any(
                        peer.wait_until_ready(_READY_TIMEOUT_SECONDS), deadline.wait_for_request()
                    )
            with Fence(context.settings.run_dir, fence).explain(UnrecoverableError):
                if context.job.spec.algorithm.evaluate is not None:
                    await evaluate_models(context, prepared, bus, fence, sinks, progress, deadline)
                elif trainer is None:
                    await generate_data(context, prepared, bus, fence, sinks, progress, deadline)
                else:
                    await run_attempt(
                        context, prepared, bus, trainer, critic, fence, sinks, progress, deadline, uploader
                    )
                if uploader is not None:
                    await publish_result(uploader, context, progress, deadline)
            return
        except Exception as error:
            if telemetry.latest_step > before:
                fruitless = 0
                backoff.reset()
            storage = find_storage_failure(error)
            if storage is not None:
                await _wait_for_storage(storage, backoff.next_delay(), progress, deadline)
                continue
            if not isinstance(error, RECOVERABLE_ERRORS):
                raise
            if context.stop.is_set():
                log.warning("stopped at the last checkpoint", extra={"cause": str(error), "fence": fence})
                raise ShutdownRequested from error
            fruitless += telemetry.latest_step <= before
            log.warning("restarting from the last checkpoint", extra={"cause": str(error), "fence": fence})
            if fruitless >= _MAX_FRUITLESS_ATTEMPTS:
                raise UnrecoverableError(
                    f"{fruitless} consecutive attempts finished no step; the last error: {error}"
                ) from error


async def _wait_for_storage(
    cause: str, seconds: float, progress: ProgressTracker, deadline: ShutdownDeadline
) -> None:
    """Wait before the next attempt to write. Trainer and critic keep their state meanwhile.

    The wait as a whole is limited by the job's `lifecycle.activeDeadlineSeconds` alone: only people can make
    room. Raises ShutdownRequested.
    """
    log.warning("waits for storage", extra={"cause": cause, "seconds": seconds})
    progress.report_storage_wait(cause)
    await run_until_any(asyncio.sleep(seconds), deadline.wait_for_request())


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
