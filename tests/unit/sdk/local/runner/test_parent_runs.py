"""Runs from whose checkpoint a job starts: which steps of a running or ended parent are admitted."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.lock import RunLock
from kubealign.local.run_dir.status import Phase, started_status
from kubealign.local.runner.admission import parent_run, parent_step_problem, pending_dependencies
from kubealign.spec.job import AlignmentJob
from support.bad_specs import whole_job


def _job(step: int | None) -> AlignmentJob:
    source: dict[str, Any] = {"job": {"name": "parent"}} | ({} if step is None else {"step": step})
    changes = {"metadata.name": "child", "spec.checkpoint": {"from": source}}
    return AlignmentJob.model_validate(whole_job("sft", changes))


@pytest.fixture
def parent(tmp_path: Path) -> RunDirectory:
    """A run that has ended, with checkpoints of steps 2 and 4."""
    folder = RunDirectory(tmp_path / "parent")
    folder.create()
    folder.write_job(AlignmentJob.model_validate(whole_job("sft")).model_dump_json(by_alias=True))
    for step in (2, 4):
        (folder.checkpoints / f"step-{step:08d}-fence-1").mkdir()
    ended = {"phase": Phase.FAILED, "ended_at": time.time()}
    started_status(None).model_copy(update=ended).write(folder.status)
    return folder


@pytest.fixture
def running(parent: RunDirectory) -> Iterator[RunLock]:
    """The parent, while a runner runs it."""
    started_status(None).write(parent.status)
    lock = parent.lock()
    lock.acquire()
    yield lock
    lock.release()


def _admit(step: int | None, parent: RunDirectory) -> Path | None:
    return parent_run(_job(step), RunDirectory(parent.root.parent / "child"), parent.root.parent)


@pytest.mark.parametrize("step", [None, 2, 4])
def test_a_run_that_has_ended_is_continued(parent: RunDirectory, step: int | None) -> None:
    assert _admit(step, parent) == parent.root
    assert list(pending_dependencies(_job(step), parent.root.parent)) == []


@pytest.mark.usefixtures("running")
def test_a_checkpoint_of_a_running_parent_is_continued_where_its_step_is_named(parent: RunDirectory) -> None:
    assert _admit(4, parent) == parent.root
    assert list(pending_dependencies(_job(4), parent.root.parent)) == []


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("step", [None, 6])
def test_the_newest_checkpoint_and_one_to_come_need_the_end_of_the_parent(
    parent: RunDirectory, step: int | None
) -> None:
    with pytest.raises(
        RunRefused, match=r"from\.job\.name: the run in .*: suspend it, wait, or name the step"
    ):
        _admit(step, parent)
    ((name, _),) = pending_dependencies(_job(step), parent.root.parent)
    assert name == "parent"
    assert parent_step_problem(_job(step), parent.root.parent) is None


@pytest.mark.usefixtures("running")
def test_a_step_that_a_running_parent_has_passed_is_refused(parent: RunDirectory) -> None:
    with pytest.raises(RunRefused, match=r"from\.step: .* no checkpoint of step 3; it has those of 2, 4"):
        _admit(3, parent)


@pytest.mark.parametrize("step", [3, 6])
def test_a_step_without_a_checkpoint_is_refused(parent: RunDirectory, step: int) -> None:
    problem = parent_step_problem(_job(step), parent.root.parent)
    assert problem is not None
    with pytest.raises(RunRefused, match=rf"no checkpoint of step {step}; it has those of 2, 4"):
        _admit(step, parent)
    for folder in parent.checkpoints.iterdir():
        folder.rmdir()
    assert (parent_step_problem(_job(step), parent.root.parent) or "").endswith("it has none")


@pytest.mark.usefixtures("running")
def test_a_linked_checkpoint_is_continued_after_its_removal(parent: RunDirectory) -> None:
    child = RunDirectory(parent.root.parent / "child")
    child.parent_checkpoint.mkdir(parents=True)
    (parent.checkpoints / "step-00000002-fence-1").rmdir()
    assert _admit(2, parent) == parent.root
