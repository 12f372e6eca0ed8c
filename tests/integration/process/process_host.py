"""Forks role processes for the tests of `run_role`, so that only this process pays for the imports.

Reads lines `start SCENARIO SETTINGS LOG` and answers the process id; `wait PID` and answers the exit code.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from kubealign.v1 import training_pb2
from kubealign.v1.trainer_pb2_grpc import TrainerServicer
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped


class Trainer(TrainerServicer):
    async def Describe(self, request: Any, context: Any) -> training_pb2.TrainingState:
        return training_pb2.TrainingState(step=7)


async def ends(context: ProcessContext) -> None:
    context.logger.info("computed", extra={"sum": await context.compute(sum, [1, 2, 3])})


async def waits(context: ProcessContext) -> None:
    context.logger.info("waiting")
    await run_until_stopped(context.stop, asyncio.sleep(3600))


async def is_replaced(context: ProcessContext) -> None:
    raise StaleFence("fence 1 has been replaced by 2")


async def fails_for_good(context: ProcessContext) -> None:
    async def check() -> None:
        raise PermanentFailure("the data has no column answer")

    async with asyncio.TaskGroup() as group:
        group.create_task(check())
        group.create_task(asyncio.sleep(3600))


async def crashes(context: ProcessContext) -> None:
    raise KeyError("advantages")


async def crashes_while_computing(context: ProcessContext) -> None:
    computing = asyncio.create_task(context.compute(time.sleep, 3600))
    await asyncio.sleep(0.1)
    computing.cancel()
    raise RuntimeError("the other rank is gone")


async def ignores_the_stop(context: ProcessContext) -> None:
    context.logger.info("waiting")
    await _for_ever()


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def computes_on(context: ProcessContext) -> None:
    context.logger.info("waiting")
    await context.compute(time.sleep, 3600)


async def stands_still(context: ProcessContext) -> None:
    context.logger.info("waiting")
    for _ in range(36_000):
        time.sleep(0.1)  # noqa: ASYNC251


async def serves(context: ProcessContext) -> None:
    async with context.serve([Trainer()]):
        context.logger.info("waiting")
        await context.stop.wait()


SCENARIOS = {
    main.__name__: main
    for main in (
        ends,
        waits,
        is_replaced,
        fails_for_good,
        crashes,
        crashes_while_computing,
        ignores_the_stop,
        computes_on,
        stands_still,
        serves,
    )
}


def start(scenario: str, settings: str, log: str) -> int:
    child = os.fork()
    if child:
        return child
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = run_role(SCENARIOS[scenario], [scenario, settings])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    for line in sys.stdin:
        match line.split():
            case ["start", scenario, settings, log]:
                Path(log).touch()
                answer = start(scenario, settings, log)
            case ["wait", pid]:
                answer = os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1])
            case other:
                raise ValueError(f"unknown command {other}")
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
