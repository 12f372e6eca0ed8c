"""Driver process of a job: `python -m kubealign_services.driver.main SETTINGS.json`."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from kubealign.v1 import critic_pb2_grpc, trainer_pb2_grpc
from kubealign_services.bus.contract import Bus, BusUnavailable
from kubealign_services.checkpoints.fence import next_fence
from kubealign_services.data.prepared import load_prepared
from kubealign_services.driver.attempt import attempt
from kubealign_services.driver.failures import JobFailed, Stopping
from kubealign_services.driver.grace import Grace
from kubealign_services.driver.making.attempt import make_data
from kubealign_services.driver.payload import check_payload
from kubealign_services.driver.progress import DriverServicer, Progress
from kubealign_services.driver.report import Sink
from kubealign_services.driver.sample_file import SampleFile
from kubealign_services.driver.tracking import tracked
from kubealign_services.driver.watched import unless
from kubealign_services.process.context import Context
from kubealign_services.process.failures import PermanentFailure
from kubealign_services.process.run import run
from kubealign_services.rpc.client import Peer
from kubealign_services.rpc.errors import OutOfOrder, Unreachable

#: Errors that a restart from the last checkpoint may fix: a role that was restarted, or a message bus that
#: was unreachable.
LOST = (Unreachable, OutOfOrder, BusUnavailable)
_READY_SECONDS = 300.0
#: Consecutive attempts without a finished step before the job fails.
_FRUITLESS = 5

log = logging.getLogger(__name__)


class Telemetry:
    """Metric sink for Prometheus and the read model of the displays. `latest_step` is the newest step
    reported.
    """

    def __init__(self, context: Context, progress: Progress) -> None:
        self._context = context
        self._progress = progress
        self.reached = -1

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Publish the metrics of a step."""
        self.reached = max(self.reached, step)
        self._context.metrics.set_step(metrics)
        self._context.read_model.metrics(step, fence, metrics)
        self._progress.reached(step)

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Publish a few samples of a step to the read model."""
        for sample in samples:
            self._context.read_model.sample(step, sample)


async def serve(context: Context) -> None:
    """Run the job to its end. Restarts from the last checkpoint whenever the connection to a role is lost."""
    settings, spec = context.settings, context.job.spec
    progress = Progress(spec.max_steps, context.read_model, trains=spec.algorithm.value.trains)
    grace = Grace(context.stop, spec.lifecycle.grace_period_seconds)
    try:
        async with AsyncExitStack() as stack:
            trainer = None
            if "trainer" in settings.peers:
                trainer = await stack.enter_async_context(
                    Peer("trainer", settings.peers["trainer"], settings.tls, trainer_pb2_grpc.TrainerStub)
                )
            critic = None
            if "critic" in settings.peers:
                critic = await stack.enter_async_context(
                    Peer("critic", settings.peers["critic"], settings.tls, critic_pb2_grpc.CriticStub)
                )
            bus = await unless(stack.enter_async_context(context.bus()), grace.told())
            await stack.enter_async_context(context.serve([DriverServicer(progress)]))
            await until_ended(context, bus, trainer, critic, progress, grace)
        progress.ended("Succeeded")
    except Stopping:
        progress.ended("Stopped")
    except JobFailed as error:
        progress.ended("Failed", str(error))
        raise PermanentFailure(str(error)) from error


async def until_ended(
    context: Context, bus: Bus, trainer: Peer | None, critic: Peer | None, progress: Progress, grace: Grace
) -> None:
    """Open the trackers and run attempts until the job ends.

    Args:
        trainer: None for a job that generates data.

    Raises:
        ShutdownRequested: The driver was asked to stop.
        UnrecoverableError: The job cannot succeed.
    """
    async with tracked(context) as trackers:
        telemetry = Telemetry(context, progress)
        samples = SampleFile(context.settings.run_dir / "samples.jsonl")
        await _attempts(context, bus, trainer, critic, progress, grace, telemetry, [samples, *trackers])


async def _attempts(
    context: Context,
    bus: Bus,
    trainer: Peer | None,
    critic: Peer | None,
    progress: Progress,
    grace: Grace,
    telemetry: Telemetry,
    others: Sequence[Sink],
) -> None:
    """Run one attempt after another, each under a new fence, until one ends without a recoverable error."""
    prepared = load_prepared(context.settings.run_dir)
    sinks: list[Sink] = [telemetry, *others]
    fruitless = 0
    while True:
        fence = next_fence(context.settings.run_dir)
        before = telemetry.reached
        progress.begin(fence)
        try:
            check_payload(context.job, prepared.report, bus.max_payload)
            for peer in (trainer, critic):
                if peer is not None:
                    await unless(peer.ready(_READY_SECONDS), grace.told())
            if trainer is None:
                await make_data(context, prepared, bus, fence, sinks, progress, grace)
            else:
                await attempt(context, prepared, bus, trainer, critic, fence, sinks, progress, grace)
            return
        except LOST as error:
            if context.stop.is_set():
                log.warning("stopped at the last checkpoint", extra={"cause": str(error), "fence": fence})
                raise Stopping from error
            fruitless = 0 if telemetry.reached > before else fruitless + 1
            log.warning("restarting from the last checkpoint", extra={"cause": str(error), "fence": fence})
            if fruitless >= _FRUITLESS:
                raise JobFailed(
                    f"{fruitless} consecutive attempts finished no step; the last error: {error}"
                ) from error


def main(argv: list[str]) -> int:
    return run(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
