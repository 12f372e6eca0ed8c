"""Two drivers on one run directory: the first is stopped at a file operation, as on a node that stands still,
and wakes after a second one has begun.

Both are real processes that run the driver's own code on a real folder. The weights of this test are the list
of the steps, each with its fence, that have trained them, so a checkpoint says how it came about.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.checkpoints.history import read_history
from kubealign_services.checkpoints.lineage import FenceStart, read_lineage, record_start
from kubealign_services.checkpoints.manifest import ShardFile, describe_shards
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointReader, CheckpointStore
from kubealign_services.roles.driver.checkpoints import CheckpointWriter, TrainingHistory
from kubealign_services.roles.driver.concurrency import run_in_thread
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.state import JobState

pytestmark = pytest.mark.timeout(240)

#: The first driver saves so rarely that a late checkpoint is beyond the last step of its successor.
_FIRST_STEPS, _FIRST_SAVE_EVERY = 8, 4
#: Steps of each later driver, which saves every step.
_LATER_STEPS = 2
#: More than the file operations of a driver: it is not stopped.
_NEVER = 100_000
_CHANGES = ("rename", "replace", "pwrite", "mkdir", "unlink", "rmdir")
_OPERATIONS = (*_CHANGES, "open", "write", "ftruncate", "fsync", "close", "listdir", "scandir")


class End(IntEnum):
    """Exit code of a driver."""

    DONE = 0
    REPLACED = 3


class Model:
    """Model in training. `weights`: [fence, step] of each step."""

    role = "trainer"

    def __init__(self, weights: list[list[int]]) -> None:
        self.weights = weights

    async def save(self, step: int, directory: Path) -> list[ShardFile]:
        await asyncio.to_thread((directory / "weights.json").write_text, json.dumps(self.weights))
        return describe_shards(directory)


def weights_of(checkpoint: Path) -> list[list[int]]:
    weights: list[list[int]] = json.loads((checkpoint / "trainer" / "weights.json").read_text())
    return weights


async def drive(run_dir: Path, keep: int) -> None:
    """Resume and train as a driver does. Raises StaleFence."""
    number = await asyncio.to_thread(acquire_fence, run_dir)
    fence = Fence(run_dir, number)
    newest = CheckpointReader(run_dir, read_lineage(run_dir, number)).latest()
    state = JobState() if newest is None else JobState.model_validate(newest.manifest.driver_state)
    model = Model([] if newest is None else weights_of(newest.path))
    lineage = await run_in_thread(record_start, fence, state.step)
    history = TrainingHistory(fence, lineage)
    await history.resume_at(state)
    store = CheckpointStore(fence, lineage, RetentionPolicy(keep))
    async with CheckpointWriter("sums", fence, store, [model]) as checkpoints:  # type: ignore[list-item]
        last_step = _FIRST_STEPS if number == 1 else state.step + _LATER_STEPS
        save_every = _FIRST_SAVE_EVERY if number == 1 else 1
        while state.step < last_step:
            state = state.copy_for_next_step()
            state.trained = [f"prompt-{state.step}"]
            model.weights.append([number, state.step])
            await history.append(state)
            if state.step % save_every == 0:
                with fence.explain(UnrecoverableError, OSError):
                    await checkpoints.save(state)
    # The export of the result ends with this check.
    fence.check()


def stop_at(number: int, operations: Sequence[str]) -> None:
    """Stop this process before the file operation of this number, until it is continued."""
    done = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return call(*arguments, **options)

        return run

    for name in operations:
        setattr(os, name, counted(getattr(os, name)))


class DriverProcess:
    """Driver in a process of its own, which stops before a file operation."""

    def __init__(self, run_dir: Path, keep: int, stops_at: int, operations: Sequence[str]) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                stop_at(stops_at, operations)
                asyncio.run(drive(run_dir, keep))
                code = End.DONE
            except StaleFence:
                code = End.REPLACED
            except BaseException as error:  # noqa: BLE001
                sys.stderr.write(f"driver: {type(error).__name__}: {error}\n")
            finally:
                os._exit(code)
        _, self._status = os.waitpid(self._pid, os.WUNTRACED)

    @property
    def is_stopped(self) -> bool:
        return os.WIFSTOPPED(self._status)

    def finish(self) -> End:
        """Continue the process. Return how it ended."""
        if self.is_stopped:
            os.kill(self._pid, signal.SIGCONT)
            _, self._status = os.waitpid(self._pid, 0)
        return End(os.waitstatus_to_exitcode(self._status))


def check_run(run_dir: Path, keep: int, fence: int) -> None:
    """Check that the lineage of a driver is whole and that its history is that of its weights."""
    start = FenceStart.model_validate_json((run_dir / f"fences/{fence}.json").read_text())
    last_step = start.step + _LATER_STEPS
    reader = CheckpointReader(run_dir)
    newest = reader.latest()
    assert newest is not None
    assert (newest.manifest.step, newest.manifest.fence) == (last_step, fence)
    history = read_history(run_dir)
    assert [line.step for line in history] == list(range(1, last_step + 1))
    assert [line.prompts for line in history] == [[f"prompt-{step}"] for step in range(1, last_step + 1)]
    assert weights_of(newest.path) == [[line.fence, line.step] for line in history]
    for step in range(last_step, last_step - keep, -1):
        checkpoint = reader.at_step(step)
        assert checkpoint is not None, f"the checkpoint of step {step} has gone"
        assert weights_of(checkpoint.path) == weights_of(newest.path)[:step]


def run_two(
    keep: int, first_stops_at: int, second_stops_at: int = _NEVER, operations: Sequence[str] = _OPERATIONS
) -> bool:
    """Stop the first driver, start the second and stop it, finish the first, then the second.

    Return whether the first driver was stopped at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        first = DriverProcess(run_dir, keep, first_stops_at, operations)
        was_stopped = first.is_stopped
        second = DriverProcess(run_dir, keep, second_stops_at, operations)
        ends = first.finish(), second.finish()
        check_run(run_dir, keep, 2)
        if ends == (End.DONE, End.DONE):
            assert {line.fence for line in read_history(run_dir)} == {1, 2}
            assert len(read_history(run_dir)) == _FIRST_STEPS + _LATER_STEPS
        else:
            # The first driver may have been stopped before it had taken a number.
            assert sorted(ends) == [End.DONE, End.REPLACED]
        # The next driver goes on from there, and nothing of the others is left over.
        asyncio.run(drive(run_dir, keep))
        check_run(run_dir, keep, 3)
        assert len(list((run_dir / "commits").iterdir())) == keep
    return was_stopped


@pytest.mark.parametrize("keep", [1, 2])
def test_first_driver_wakes_after_the_second_has_ended(keep: int) -> None:
    """Check the wake-up at each change: of the start, the history, a save, its rename, the pruning."""
    change = 1
    while run_two(keep, change, operations=_CHANGES):
        change += 1
    assert change > 20


@settings(deadline=None, max_examples=25)
@given(
    keep=st.integers(1, 2),
    first=st.integers(1, 150),
    second=st.one_of(st.integers(1, 150), st.just(_NEVER)),
)
@example(keep=1, first=_NEVER, second=_NEVER)
def test_first_driver_wakes_while_the_second_stands_still_or_after_it(
    keep: int, first: int, second: int
) -> None:
    run_two(keep, first, second)
