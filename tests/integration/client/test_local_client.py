"""Client on this machine, with real jobs."""

import threading
from pathlib import Path

import pytest

from kubealign import AlignmentClient, Job
from kubealign.errors import Conflict, JobExists, JobFailed, JobNotFound, NotPossible, WaitTimeout
from support.client_script import walk
from support.running import left_running
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, sft_job, write_jobs, write_reward

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}
STEPS = 8


@pytest.mark.timeout(300)
def test_script_submits_waits_follows_scales_and_loads(client: AlignmentClient, tmp_path: Path) -> None:
    document = online_job(tmp_path, "walked", RLOO, maxSteps=STEPS)
    reward = PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.6)))
    document["spec"]["rewards"] = [write_reward(tmp_path, reward)]
    heard: dict[str, dict] = {}

    def look(job: Job) -> None:
        heard.update({process.name: dict(process.says) for process in job.processes()})
        states = {process.name: process.state for process in job.processes()}
        assert states["driver"] == "Ready" and states["prepare"] == "Finished"
        with pytest.raises(JobExists, match="there is a job walked"):
            client.submit(document)
        with pytest.raises(NotPossible, match="has no result, it is Running"):
            job.result()
        with pytest.raises(WaitTimeout, match=r"waited 0.2 s for .*walked to be Suspended: it is Running"):
            job.wait(0.2, until="Suspended")
        with pytest.raises(Conflict, match=r"reads spec.checkpoint when it starts: suspend it first"):
            client.patch("walked", {"spec": {"checkpoint": {"everySteps": 9}}})

    def quicken(job: Job) -> None:
        look(job)
        threading.Thread(target=_quicken_once_scaled, args=(client, tmp_path), daemon=True).start()

    seen = walk(client, document, tmp_path / "into", running=quicken)
    assert seen.phases == ["Pending", "Starting", "Running", "Succeeded"]
    assert heard["rollout-0"]["role"] == "rollout", "each process says something of itself"
    log = tmp_path / "runs" / "walked" / "logs" / "driver.log"
    assert seen.lines == log.read_text().splitlines(), "it was followed from its beginning to its end"

    job = seen.job.refresh()
    assert job.step == STEPS and job.status.reward is not None and job.status.completion_time is not None
    assert job.job.spec.rollout.replicas == 2
    table = job.metrics()
    assert [row["step"] for row in table] == list(range(1, STEPS + 1))
    assert "reward/mean" in table.columns and len(table.to_pandas()) == STEPS
    samples = job.samples(step=STEPS, count=3)
    assert len(samples) == 3 and {sample.step for sample in samples} == {STEPS}
    assert [event.reason for event in job.events()] == ["Submitted", "Started", "Scaled", "Succeeded"]
    assert [line.text for line in job.logs(process="runner", tail=1)] == [
        line.text for line in job.logs(role="runner")
    ][-1:]
    loaded = job.load_result()
    assert loaded.path == seen.result and loaded.tokenizer("ab")["input_ids"]
    assert sum(weights.numel() for weights in loaded.model.parameters()) > 0

    with pytest.raises(Conflict, match="has finished"):
        job.suspend()
    job.delete()
    with pytest.raises(JobNotFound):
        job.refresh()
    assert not (tmp_path / "runs" / "walked").exists()
    assert left_running(tmp_path / "runs") == {}


def _quicken_once_scaled(client: AlignmentClient, folder: Path) -> None:
    """Speed the job up once the script has scaled it."""
    for changed in client.changes("walked"):
        if changed.status.rollout_replicas == 2 or (changed.phase and changed.phase.is_final):
            break
    set_pace(folder, 0.0)


@pytest.mark.timeout(300)
def test_jobs_of_a_file_run_in_order_and_suspend(client: AlignmentClient, tmp_path: Path) -> None:
    base = sft_job(tmp_path, "base", maxSteps=100, checkpoint={"everySteps": 1000})
    following = sft_job(tmp_path, "following", maxSteps=2, policy={"model": {"job": {"name": "base"}}})
    jobs = client.submit_all(write_jobs(tmp_path, following, base))
    assert [job.name for job in jobs] == ["base", "following"]
    first, second = jobs

    first.wait(120, until="Running")
    assert second.refresh().phase == "Pending"
    assert second.message == "waits for the result of base (Running)"
    for changed in client.changes("base"):
        if changed.step >= 2:
            break
    first.suspend()
    first.wait(60, until="Suspended")
    assert first.resource["spec"]["suspend"] is True
    assert "resume it to continue from there" in first.message
    stopped_at = first.step
    assert stopped_at >= 2
    assert second.refresh().message == "waits for the result of base (Suspended)"

    # Until a runner reads them, run settings and duration may be changed.
    client.patch("base", {"spec": {"lifecycle": {"maxRestarts": 3}}, "metadata": {"labels": {"team": "a"}}})
    assert [job.name for job in client.list(label_selector="team=a", phases=["Suspended"])] == ["base"]
    first.resume()
    assert "suspend" not in first.resource["spec"]
    first.wait(120)
    assert [row["step"] for row in first.metrics()] == list(range(1, 101)), (
        "no step is lost, none is there twice"
    )
    assert {"Submitted", "Started", "Suspending", "Stopping", "Stopped", "Resumed", "Succeeded"} == {
        event.reason for event in first.events()
    }
    second.wait(120)
    assert second.step == 2


@pytest.mark.timeout(300)
def test_failure_is_reported_and_fails_dependents(client: AlignmentClient, tmp_path: Path) -> None:
    base = sft_job(tmp_path, "broken")
    base["spec"]["data"]["demonstrations"]["source"]["path"] = str(tmp_path / "nowhere.jsonl")
    following = sft_job(tmp_path, "following", policy={"model": {"job": {"name": "broken"}}})
    first, second = client.submit_all([following, base])
    lines: list[str] = []
    reader = threading.Thread(
        target=lambda: lines.extend(line.text for line in first.logs(process="prepare", follow=True))
    )
    reader.start()
    with pytest.raises(JobFailed, match=r"default/broken has failed: prepare: .*nowhere\.jsonl"):
        first.wait(90)
    with pytest.raises(JobFailed, match="it needs the result of broken, which has failed: prepare"):
        second.wait(90)
    reader.join(30)
    assert lines and not reader.is_alive()
    with pytest.raises(NotPossible, match=r"has no log of trainer-0: there are .*runner"):
        list(second.logs(process="trainer-0"))

    # An unknown name, and a wait for a job that is deleted in the meantime.
    lonely = client.submit(sft_job(tmp_path, "lonely", policy={"model": {"job": {"name": "nobody"}}}))
    with pytest.raises(JobFailed, match="there is no such job: submit nobody first"):
        lonely.wait(60)
    waiting = client.submit(
        sft_job(tmp_path, "waiting")
        | {"metadata": {"name": "waiting"}}
        | {"spec": base["spec"] | {"suspend": True}}
    )
    assert (
        waiting.phase == "Suspended"
        and waiting.message == "suspended before it started; resume it to start it"
    )
    threading.Timer(1.0, waiting.delete).start()
    with pytest.raises(JobNotFound, match="deleted while it was waited for"):
        waiting.wait(60)
    assert [job.name for job in client.list(sort="name")] == ["broken", "following", "lonely"]
