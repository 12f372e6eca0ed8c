"""Environment process: `python -m kubealign_services.roles.environment.main SETTINGS.json`."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubealign.spec.job import AlignmentJob
from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.pool import EnvironmentPool
from kubealign_services.environments.replicas.announcements import EnvironmentAnnouncer
from kubealign_services.roles.environment.servicer import EnvironmentsServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped

#: Share of the grace period for episodes in progress when the worker is stopped.
_FINISH_SHARE = 0.5

log = logging.getLogger(__name__)


async def serve(context: ProcessContext) -> None:
    """Play episodes until stopped; then finish those in progress within half of the grace period."""
    spec = _environment(context.job)
    settings = context.settings
    address = settings.advertise or settings.listen
    if address is None:
        raise PermanentFailure(f"{settings.name} serves, but its settings hold no listen address")
    capacity = spec.processes * spec.concurrency
    async with _open_pool(spec) as pool, context.bus() as bus:
        servicer = EnvironmentsServicer(pool, capacity)
        announcer = EnvironmentAnnouncer(bus, settings.name, address, capacity, lambda: servicer.sessions)
        episodes = context.metrics.environment_episodes

        def report_change() -> None:
            episodes.set(servicer.sessions)
            announcer.notify()

        servicer.on_change = report_change
        context.heartbeat.set_fields(
            lambda: {
                "running": servicer.sessions,
                "capacity": capacity,
                "environment_processes": sum(process.is_usable for process in pool.processes),
            }
        )
        async with context.serve([servicer]):
            await run_until_stopped(context.stop, announcer.run())
            await announcer.leave()
            await _finish(servicer, context.job.spec.lifecycle.grace_period_seconds * _FINISH_SHARE)


def _environment(job: AlignmentJob) -> EnvironmentSpec:
    """Return the environment of the job. Raises PermanentFailure where it has none."""
    workflow = job.spec.rollout.workflow
    if workflow is None or workflow.environment is None:
        raise PermanentFailure("the job has no spec.rollout.workflow.environment")
    return workflow.environment


@asynccontextmanager
async def _open_pool(spec: EnvironmentSpec) -> AsyncIterator[EnvironmentPool]:
    """Start the environments' processes. Raises PermanentFailure where none can be created."""
    pool = EnvironmentPool(spec)
    try:
        await pool.__aenter__()
    except EnvironmentFailed as error:
        raise PermanentFailure(f"spec.rollout.workflow.environment: {error}") from error
    try:
        yield pool
    finally:
        await pool.__aexit__(None, None, None)


async def _finish(servicer: EnvironmentsServicer, seconds: float) -> None:
    """Wait until the episodes in progress have ended, or until the time is over: those left fail."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await servicer.finish()
    if servicer.sessions:
        log.warning("episodes were interrupted by the shutdown", extra={"episodes": servicer.sessions})


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
