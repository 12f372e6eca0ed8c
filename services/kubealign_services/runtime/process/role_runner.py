"""Runs the main function of a role process: reads the settings, builds the context, returns an exit code.

A role's module has `def main(argv): return run_role(serve, argv)`, to be called as `python -m MODULE
SETTINGS.json` or in a forked child.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from kubealign.local.processes.devices import VISIBLE_DEVICES
from kubealign.process_settings import STACKS_SIGNAL, ExitCode, ProcessSettings
from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.failpoints import arm_failpoints
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.cpu_priority import lower_priority, lower_session_priority
from kubealign_services.runtime.process.exit_watchdog import ExitWatchdog, awaited_functions, exit_immediately
from kubealign_services.runtime.process.failures import find_permanent_failure, find_storage_failure
from kubealign_services.runtime.process.health_server import HealthServer
from kubealign_services.runtime.process.liveness_file import touch_while_alive
from kubealign_services.runtime.process.termination_message import write_termination_message
from kubealign_services.runtime.rpc.server import PortInUse
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.telemetry.logs import LastError, set_up_logs
from kubealign_services.telemetry.metrics import MetricsServer, ProcessMetrics
from kubealign_services.telemetry.rates import BusyShare
from kubealign_services.telemetry.read_model_writer import ReadModelWriter
from kubealign_services.telemetry.tracing import send_traces

log = logging.getLogger(__name__)

RoleMain = Callable[[ProcessContext], Awaitable[None]]

#: Exit code of a crash, after which the process is restarted: any code that is not an Exit.
CRASHED = 1


def run_role(
    main: RoleMain,
    argv: Sequence[str],
    before_start: Callable[[ProcessSettings, AlignmentJob], None] = lambda settings, job: None,
) -> int:
    """Run `main` with the settings in the file argv[1]; return the exit code, an Exit or CRASHED.

    SIGTERM and SIGINT set `context.stop`; from then on `main` has the job's grace period. A second signal
    exits the process at once. A PermanentFailure is written to the termination message.

    Args:
        before_start: Called before anything of the process is set up; it may replace the process.
    """
    try:
        settings, job = _load_settings(argv)
    except (OSError, ValidationError, ValueError) as error:
        sys.stderr.write(f"{argv[0] if argv else 'a role process'}: {error}\n")
        return ExitCode.PERMANENT
    before_start(settings, job)
    set_up_logs(job.name, settings.role, settings.name, sys.stdout)
    last_error = LastError()
    logging.getLogger().addHandler(last_error)
    # The runner asks for the stacks of a process that hangs before it kills it.
    faulthandler.register(STACKS_SIGNAL, sys.stderr, all_threads=True)
    if settings.yields:
        lower_priority()
    if settings.threads is not None:
        import torch

        torch.set_num_threads(settings.threads)
    arm_failpoints(settings.run_dir, settings.name)
    devices = os.environ.get(VISIBLE_DEVICES)
    log.info("started", extra={"rank": settings.rank, "threads": settings.threads, "devices": devices})
    deadline = ExitWatchdog()
    code = asyncio.run(_run_with_context(main, settings, job, deadline, last_error))
    deadline.cancel()
    return code


def _load_settings(argv: Sequence[str]) -> tuple[ProcessSettings, AlignmentJob]:
    if len(argv) != 2:
        raise ValueError("needs one argument, the file with its settings")
    settings = ProcessSettings.model_validate_json(Path(argv[1]).read_text())
    return settings, AlignmentJob.model_validate_json(settings.job.read_text())


async def _run_with_context(
    main: RoleMain,
    settings: ProcessSettings,
    job: AlignmentJob,
    deadline: ExitWatchdog,
    last_error: LastError,
) -> int:
    read_model = ReadModelWriter(settings.redis)
    busy = BusyShare()

    def common_fields() -> dict[str, Any]:
        return {"busy_share": round(busy.read_and_reset(), 3), "last_error": last_error.text}

    context = ProcessContext(
        settings=settings,
        job=job,
        logger=logging.getLogger(f"kubealign_services.{settings.role}"),
        stop=asyncio.Event(),
        metrics=ProcessMetrics(job.name, settings.role, settings.name),
        read_model=read_model,
        heartbeat=Heartbeat(read_model, settings.name, settings.role, common=common_fields),
        busy_share=busy,
    )
    work = _run_main(main, context)
    grace = job.spec.lifecycle.grace_period_seconds

    def start_watchdog(code: int) -> None:
        deadline.start(grace, code, lambda: _describe_pending_work(context, work))

    with _handle_signals(context.stop, lambda: start_watchdog(CRASHED)):
        code = await work
        start_watchdog(code)
    log.info("ended", extra={"code": int(code)})
    if context.running_computation:
        # No caller waits for its result; its thread, or its exit handlers, would keep the process alive.
        log.warning("exited during a computation", extra={"computation": context.running_computation})
        exit_immediately(code)
    return code


async def _run_main(main: RoleMain, context: ProcessContext) -> int:
    """Run the main function within its context. Maps every way to end to an exit code."""
    settings = context.settings
    try:
        async with AsyncExitStack() as stack:
            stack.callback(context.close)
            job = context.job
            tracing = send_traces(job.name, job.metadata.namespace, settings.role, settings.name)
            await stack.enter_async_context(tracing)
            await stack.enter_async_context(touch_while_alive(settings.liveness, lambda: context.is_live))
            if settings.health is not None:
                await stack.enter_async_context(
                    HealthServer(settings.health, lambda: context.is_healthy, lambda: context.is_live)
                )
            if settings.metrics is not None:
                stack.enter_context(MetricsServer(settings.metrics, settings.tls, context.metrics))
            await stack.enter_async_context(context.read_model)
            await stack.enter_async_context(context.heartbeat.run())
            if settings.yields:
                standing_back = asyncio.create_task(lower_session_priority(), name="standing back")
                stack.callback(standing_back.cancel)
            await main(context)
    except PortInUse as error:
        log.error(str(error))
        return CRASHED
    except StaleFence as error:
        log.warning("replaced: %s", error)
        return ExitCode.REPLACED
    except Exception as error:
        cause = find_permanent_failure(error)
        storage = find_storage_failure(error)
        if cause is None and storage is not None:
            write_termination_message(settings.termination, storage)
            log.error("waits for storage: %s", storage)
            return ExitCode.STORAGE
        if cause is None:
            log.exception("crashed: %s", error)
            return CRASHED
        write_termination_message(settings.termination, str(cause))
        log.error(str(cause), extra={"permanent": True})
        return ExitCode.PERMANENT
    return ExitCode.STOPPED if context.stop.is_set() else ExitCode.DONE


def _describe_pending_work(context: ProcessContext, work: object) -> str:
    if context.current_computation:
        return f"the computation {context.current_computation}"
    chain = awaited_functions(work)
    if chain:
        return chain
    threads = [thread.name for thread in threading.enumerate() if not thread.daemon]
    return f"threads {', '.join(threads)}"


@contextmanager
def _handle_signals(stop: asyncio.Event, on_stop: Callable[[], None]) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT.

    Handled with `signal.signal`, not by the event loop, which may be blocked.
    """
    loop = asyncio.get_running_loop()
    is_stopping = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            # Not logged: the signal may have interrupted the logging itself.
            os._exit(ExitCode.STOPPED)
        is_stopping = True
        on_stop()
        loop.call_soon_threadsafe(stop.set)
        loop.call_soon_threadsafe(log.info, "stopping on %s", signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    # The parent may have set Ctrl-C to be ignored: keep that.
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
