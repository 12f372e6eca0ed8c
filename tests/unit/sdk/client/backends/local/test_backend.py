"""Local backend over run directories, without processes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.client.backends.local import index, lifecycle
from kubealign.client.backends.local.backend import LocalBackend
from kubealign.client.errors import Conflict, JobExists, JobInvalid, JobNotFound, NotPossible
from kubealign.client.records import JobRef, ListQuery
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.lock import RunLock
from kubealign.local.run_dir.status import Phase, RunStatus
from kubealign.spec.job import AlignmentJob

JOB: dict[str, Any] = {
    "apiVersion": "kubealign.dev/v1alpha1",
    "kind": "AlignmentJob",
    "metadata": {"name": "a"},
    "spec": {
        "maxSteps": 10,
        "algorithm": {"sft": {}},
        "policy": {"model": {"path": "/model"}},
        "data": {"demonstrations": {"source": {"path": "/rows.jsonl"}, "format": {"text": {}}}},
    },
}
A = JobRef("default", "a")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    site = LocalBackend(tmp_path)
    yield site
    await site.close()


def written(runs: Path, name: str = "a", phase: Phase | None = None, **metadata: Any) -> RunDirectory:
    """Write a run directory as left by a runner, or by a submission if `phase` is None."""
    folder = RunDirectory(runs / name)
    folder.create()
    job = AlignmentJob.model_validate(JOB | {"metadata": {"name": name, **metadata}})
    folder.write_job(job.model_dump_json(by_alias=True))
    if phase is not None:
        status = RunStatus(phase=phase, runner=7, started_at=1e9, step=3, metrics={"reward/mean": 0.5})
        status.write(folder.status)
    return folder


def held_by(folder: RunDirectory, pid: int, alone: bool = True) -> RunLock:
    lock = folder.lock()
    lock.reserve()
    lock.write_holder(pid, runs_one_job=alone)
    return lock


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition by polling, because a watcher signals no event to the test."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_run_has_a_kubernetes_resource(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.SUCCEEDED, labels={"team": "a"})
    record = await site.get(A)
    assert record.uid == folder.read_identity().uid and record.labels == {"team": "a"}
    assert record.resource["spec"]["policy"] == JOB["spec"]["policy"]
    assert "null" not in json.dumps(record.resource), "a document says nothing by a null"
    assert record.algorithm == "sft" and record.job.spec.max_steps == 10
    status = record.status
    assert (status.phase, status.step, status.reward) == ("Succeeded", 3, 0.5)
    assert status.result is not None and status.result.path == str(tmp_path / "a" / "result")
    assert [(c.type, c.status) for c in status.conditions or []] == [
        ("Complete", "True"),
        ("Failed", "False"),
    ]
    assert await site.result(A) == tmp_path / "a" / "result"
    assert {process.state for process in await site.processes(A)} == {"Finished"}


async def test_job_with_killed_runner_is_not_running(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.RUNNING)
    lock = held_by(folder, 7)
    assert (await site.get(A)).phase == "Starting"
    folder.metrics.write_text(
        '{"step": 4, "fence": 1, "time": 2e9, "reward/mean": 0.75, "kl/reference": NaN}\n'
    )
    record = await site.get(A)
    assert (record.phase, record.status.step, record.status.reward) == ("Running", 4, 0.75)
    # JSON cannot represent the value.
    assert record.status.kl is None
    before = int(record.metadata["resourceVersion"])
    lock.release()
    record = await site.get(A)
    assert record.phase == "Suspended"
    assert record.status.message == (
        "its runner (process 7) was killed; resume it to continue from the last checkpoint"
    )
    assert int(record.metadata["resourceVersion"]) > before, "it grows though no file has changed"
    with pytest.raises(NotPossible, match="has no result, it is Suspended"):
        await site.result(A)


@pytest.mark.parametrize("name", ["..", "../a", ".a.lock", "A", "", "a/b", "b"])
async def test_invalid_names_are_not_found(site: LocalBackend, tmp_path: Path, name: str) -> None:
    written(tmp_path / "runs")
    written(tmp_path, "a")
    with pytest.raises(JobNotFound):
        await site.get(JobRef("default", name))


async def test_error_names_the_namespace_that_has_the_job(site: LocalBackend, tmp_path: Path) -> None:
    written(tmp_path, namespace="team")
    with pytest.raises(JobNotFound, match=r"no job a in namespace default of .*; namespace team has one"):
        await site.get(A)
    assert (await site.get(JobRef("team", "a"))).namespace == "team"


async def test_folders_without_a_run_are_not_listed(site: LocalBackend, tmp_path: Path) -> None:
    assert (await LocalBackend(tmp_path / "none").list(ListQuery())).jobs == []
    written(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "job.json").write_text('{"metadata"')
    (tmp_path / "file").write_text("")
    damaged = written(tmp_path, "damaged")
    damaged.status.write_text("{}")
    page = await site.list(ListQuery(sort="name"))
    assert [(job.name, job.phase) for job in page.jobs] == [("a", "Suspended"), ("damaged", "Failed")]
    assert "is damaged" in (page.jobs[1].status.message or "")


async def test_list_rereads_changed_runs_only(
    site: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        written(tmp_path, f"job-{number}", Phase.SUCCEEDED)
    # A folder that was just written is read again, because the clock may not distinguish the next change.
    await asyncio.sleep(index._CLOCK_GRAIN_SECONDS + 0.05)
    reads: list[str] = []
    read = index._read_run

    def counted(folder: RunDirectory, name: str, *changed: Any) -> Any:
        reads.append(name)
        return read(folder, name, *changed)

    monkeypatch.setattr(index, "_read_run", counted)
    monkeypatch.setattr(index, "_MAX_AGE_SECONDS", 0.0)
    first = await site.list(ListQuery(limit=20))
    assert len(reads) == 30 and len(first.jobs) == 20 and first.total == 30
    reads.clear()
    rest = await site.list(ListQuery(limit=20, after=first.next))
    assert reads == [] and len(rest.jobs) == 10 and rest.next == ""
    await site.patch(JobRef("default", "job-3"), {"metadata": {"labels": {"new": ""}}})
    reads.clear()
    assert [job.name for job in (await site.list(ListQuery(label_selector="new"))).jobs] == ["job-3"]
    assert set(reads) <= {"job-3"}


@pytest.mark.parametrize(("max_steps", "steps"), [(10, 10), (1000, 12), (None, 12)])
async def test_the_prepared_rows_give_the_number_of_steps(
    site: LocalBackend, tmp_path: Path, max_steps: int | None, steps: int
) -> None:
    folder = written(tmp_path, phase=Phase.RUNNING)
    lock = held_by(folder, 7)
    spec = JOB["spec"] | {"maxSteps": max_steps, "algorithm": {"sft": {"rowsPerStep": 5, "maxEpochs": 3}}}
    folder.write_job(AlignmentJob.model_validate(JOB | {"spec": spec}).model_dump_json(by_alias=True))
    assert (await site.get(A)).status.max_steps is None
    folder.prepared.mkdir()
    # Three times 19 rows: eleven steps and two rows.
    folder.preparation_report.write_text(json.dumps({"train": {"rows_kept": 19}}))
    assert (await site.get(A)).status.max_steps == steps
    lock.release()
    assert (await site.get(A)).status.max_steps == steps


async def test_a_job_of_another_version_keeps_its_number_of_steps(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.SUCCEEDED)
    document = JOB | {"spec": JOB["spec"] | {"algorithm": {"unknown": {}}}}
    folder.write_job(json.dumps(document))
    assert (await site.get(A)).status.max_steps == 10


async def test_patch_changes_mutable_fields_only(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.STOPPED)
    before = await site.get(A)
    labels = {"metadata": {"labels": {"x": "y"}, "resourceVersion": before.metadata["resourceVersion"]}}
    after = await site.patch(A, labels)
    assert after.labels == {"x": "y"} and after.metadata["generation"] == 2 and after.uid == before.uid
    with pytest.raises(Conflict, match="has changed in the meantime"):
        await site.patch(A, labels)
    changed = await site.patch(A, {"spec": {"maxSteps": 20, "checkpoint": {"keep": 5}}})
    assert changed.job.spec.max_steps == 20 and changed.job.spec.checkpoint.keep == 5
    for patch, field in (
        ({"spec": {"maxSteps": 5}}, "spec.maxSteps"),
        ({"spec": {"seed": 2}}, "spec.seed"),
        ({"spec": {"seed": "2"}}, "spec.seed"),
        ({"metadata": {"name": "b"}}, "metadata.name"),
        ({"metadata": {"namespace": "b"}}, "metadata.namespace"),
        ({"spec": {"algorithm": None}}, "spec.algorithm"),
    ):
        with pytest.raises(JobInvalid) as caught:
            await site.patch(A, patch)
        assert caught.value.errors[0].path == field
    lock = held_by(folder, 7)
    status = RunStatus(phase=Phase.RUNNING, runner=7, started_at=1e9)
    status.write(folder.status)
    with pytest.raises(Conflict, match=r"reads spec.maxSteps when it starts: suspend it first"):
        await site.patch(A, {"spec": {"maxSteps": 30}})
    assert (await site.patch(A, {"metadata": {"annotations": {"note": "seen"}}})).phase == "Starting"
    lock.release()
    with pytest.raises(NotPossible, match="has no rollout workers: sft does not sample"):
        await site.scale(A, 2)


async def test_finished_job_cannot_be_changed(site: LocalBackend, tmp_path: Path) -> None:
    written(tmp_path, phase=Phase.FAILED)
    for suspended in (True, False):
        with pytest.raises(Conflict, match="has finished"):
            await site.suspend(A, suspended)
    with pytest.raises(Conflict, match="its spec can no longer be changed"):
        await site.patch(A, {"spec": {"maxSteps": 30}})
    with pytest.raises(JobExists, match="delete it, or choose another name"):
        await site.create(JOB)


async def test_only_a_failed_job_is_retried(
    site: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    monkeypatch.setattr(lifecycle, "launch_runner", lambda runs, name: launched.append((runs, name)))
    for phase in (Phase.SUCCEEDED, Phase.STOPPED):
        written(tmp_path, phase=phase)
        with pytest.raises(Conflict, match="only a job that has failed can be retried"):
            await site.retry(A)
    written(tmp_path, phase=Phase.FAILED)
    await site.retry(A)
    assert launched == [(tmp_path, "a")]


async def test_runner_of_another_job_is_not_stopped(site: LocalBackend, tmp_path: Path) -> None:
    """Process 1 may not be signalled: a stop request would raise PermissionError."""
    folder = written(tmp_path)
    lock = held_by(folder, 1, alone=False)
    for act in (site.suspend(A, True), site.delete(A)):
        with pytest.raises(Conflict, match=r"one of several jobs of a kubealign run \(process 1\)"):
            await act
    lock.release()


async def test_dry_run_writes_nothing(site: LocalBackend, tmp_path: Path) -> None:
    record = await site.create(JOB, dry_run=True)
    assert record.phase == "Pending" and record.job.spec.max_steps == 10
    assert not left_in(tmp_path)
    with pytest.raises(JobInvalid) as caught:
        await site.create(JOB | {"spec": JOB["spec"] | {"maxSteps": 0, "sed": 1}}, dry_run=True)
    assert {error.path for error in caught.value.errors} == {"spec.maxSteps", "spec.sed"}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("")
    with pytest.raises(Conflict, match="is not a run directory"):
        await site.create(JOB)


async def test_relative_paths_are_resolved_against_the_submitter(
    site: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = JOB | {"spec": JOB["spec"] | {"policy": {"model": {"path": "models/base"}}, "suspend": True}}
    record = await site.create(job)
    assert record.resource["spec"]["policy"] == {"model": {"path": str(tmp_path / "models" / "base")}}
    assert record.phase == "Suspended" and record.resource["spec"]["suspend"] is True
    assert [event.reason for event in await site.events(A)] == ["Submitted"]


async def test_watchers_see_each_change_and_the_end(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.STOPPED)
    seen: list[list[str]] = [[], []]

    async def watch(phases: list[str]) -> None:
        async for record in site.watch(A):
            phases.append(f"{record.phase} {record.labels.get('n', '')}")

    async with asyncio.timeout(60):
        watching = [asyncio.create_task(watch(phases)) for phases in seen]
        await eventually(lambda: all(seen))
        await site.patch(A, {"metadata": {"labels": {"n": "1"}}})
        await eventually(lambda: all(len(phases) > 1 for phases in seen))
        await site.delete(A)
        await asyncio.gather(*watching)
    assert seen == [["Suspended ", "Suspended 1"]] * 2
    assert not folder.root.exists()
    with pytest.raises(JobNotFound):
        await anext(aiter(site.watch(A)))


async def test_logs_by_process_role_and_tail(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.STOPPED)
    for name, text in (("driver", "1\n2\n3\nhalf"), ("trainer-0", "a\nb\n"), ("trainer-1", "\xff\n")):
        folder.log_path(name).write_bytes(text.encode("latin-1"))

    async def lines(**options: Any) -> list[str]:
        return [f"{line.process}:{line.text}" async for line in site.logs(A, **options)]

    assert await lines(process="driver") == ["driver:1", "driver:2", "driver:3", "driver:half"]
    assert await lines(process="driver", tail=2) == ["driver:3", "driver:half"]
    assert await lines(role="trainer", tail=1) == ["trainer-0:b", "trainer-1:\ufffd"]
    assert await lines(tail=0) == []
    with pytest.raises(NotPossible, match="the log of a process holds all its attempts"):
        await lines(previous=True)
    for options in ({"process": "rollout-0"}, {"role": "critic"}, {"process": "../../job"}):
        with pytest.raises(NotPossible, match="there are driver, trainer-0, trainer-1"):
            await lines(**options)


async def test_logs_can_be_followed_before_any_exists(site: LocalBackend, tmp_path: Path) -> None:
    folder = written(tmp_path, phase=Phase.STOPPED)
    got: list[str] = []

    async def follow() -> None:
        async for line in site.logs(A, role="rollout", follow=True, tail=1):
            got.append(f"{line.process}:{line.text}")

    async with asyncio.timeout(60):
        following = asyncio.create_task(follow())
        await asyncio.sleep(0.3)
        folder.log_path("rollout-0").write_text("1\n2\n3\nha")
        await eventually(lambda: len(got) >= 3)
        folder.log_path("rollout-1").write_text("x\n")
        with folder.log_path("rollout-0").open("a") as file:
            file.write("lf\nend")
        await eventually(lambda: len(got) >= 5)
        RunStatus(phase=Phase.SUCCEEDED, runner=7, started_at=1e9).write(folder.status)
        await following
    assert got[:3] == ["rollout-0:1", "rollout-0:2", "rollout-0:3"], (
        "what came while it was followed is whole"
    )
    assert sorted(got[3:5]) == ["rollout-0:half", "rollout-1:x"] and got[5] == "rollout-0:end"
