"""Checkpoint writer: the event loop never waits for a disk, and a save never for a removal."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.checkpoints.manifest import ShardFile, describe_shards
from kubealign_services.checkpoints.retention import writing_name
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointReader, CheckpointStore
from kubealign_services.roles.driver.checkpoints import CheckpointWriter, TrainingHistory
from kubealign_services.roles.driver.state import JobState

pytestmark = pytest.mark.timeout(60)

_CHANGES = ("fsync", "rename", "unlink", "rmdir", "write", "pwrite")


class Trainer:
    role = "trainer"

    async def save(self, step: int, directory: Path) -> list[ShardFile]:
        await asyncio.to_thread((directory / "shard").write_text, str(step))
        return await asyncio.to_thread(describe_shards, directory)


def intercept(monkeypatch: pytest.MonkeyPatch, before: Callable[[str, Any], None]) -> None:
    """Call `before` with the name and the first argument of each change of a file."""

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(first: Any, *arguments: Any, **options: Any) -> Any:
            before(name, first)
            return call(first, *arguments, **options)

        return run

    for name in _CHANGES:
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    fence = Fence(tmp_path, 2)
    store = CheckpointStore(fence, record_start(fence, 0), RetentionPolicy(1))
    return CheckpointWriter("sums", fence, store, [Trainer()])  # type: ignore[list-item]


async def test_no_file_is_changed_on_the_event_loop(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread, changes = threading.get_ident(), set()

    def check(name: str, path: Any) -> None:
        assert threading.get_ident() != loop_thread, f"{name}({path!r}) is called on the event loop"
        changes.add(name)

    history = TrainingHistory(Fence(tmp_path, 2), record_start(Fence(tmp_path, 2), 0))
    intercept(monkeypatch, check)
    async with writer:
        for step in (1, 2, 3):
            await history.append(JobState(step=step))
            await writer.save(JobState(step=step))
    assert changes == set(_CHANGES)
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["step-00000003-fence-2"]


async def test_removal_that_stands_still_holds_up_no_save(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / "commits" / writing_name(1, "step-00000001")
    leftover.mkdir(parents=True)
    (leftover / "shard").write_text("large")
    begun, resumed = threading.Event(), threading.Event()

    def stand_still(name: str, path: Any) -> None:
        if name == "unlink" and path == "shard" and not resumed.is_set():
            begun.set()
            assert resumed.wait(30)

    intercept(monkeypatch, stand_still)
    async with writer:
        assert await asyncio.to_thread(begun.wait, 30)
        for step in (1, 2, 3):
            await writer.save(JobState(step=step))
        assert CheckpointReader(tmp_path).latest_step() == 3
        assert leftover.exists()
        resumed.set()
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["step-00000003-fence-2"]
