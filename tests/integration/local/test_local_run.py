"""The runner with small real role processes, a real NATS and a real Redis server."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from local_job import (
    Place,
    alive,
    driver,
    eventually,
    is_there,
    mode,
    prepare,
    rollout,
    shared_memory,
    trainer,
)

from kubealign.local.errors import RunRefused
from kubealign.local.processes.liveness import LivenessPolicy
from kubealign.local.processes.supervisor import UnitState
from kubealign.local.run_dir.control_socket import list_processes, scale
from kubealign.local.run_dir.status import Phase, read_status
from kubealign.process_settings import ExitCode, ProcessSettings

pytestmark = pytest.mark.timeout(90)
JOB = [prepare(), trainer(), rollout(), driver("trainer", "rollout")]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def nothing_left(place: Place, *servers: int) -> None:
    assert [pid for pid in (*place.pids(), *servers) if alive(pid)] == []


async def test_starts_in_order_and_ends_with_the_driver(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    servers = [begun.pid("nats"), begun.pid("redis")]
    memory = shared_memory(place.folder.root)
    assert mode(memory) == mode(place.folder.root) == 0o700
    # Files that processes write are their owner's only, in any folder.
    assert mode(place.path / "events.jsonl") == 0o600
    assert {mode(path) for path in place.folder.settings.glob("*.json")} == {0o600}

    status = await begun.finish()

    assert status.phase is Phase.SUCCEEDED, status.message
    assert read_status(place.folder.status) == status
    starts = place.sequence("start")
    assert starts[0] == "prepare" and starts[-1] == "driver"
    assert sorted(starts[1:3]) == ["rollout-0", "trainer-0"]
    assert sorted(place.sequence("term")) == ["rollout-0", "trainer-0"]
    assert not is_there(memory)
    nothing_left(place, *servers)


async def test_each_process_gets_its_settings(place: Place) -> None:
    begun = await place.begin([prepare(), trainer(0, 2), trainer(1, 2), driver("trainer")])
    await begun.all_ready()
    messages = {
        name: ProcessSettings.model_validate_json((place.folder.settings / f"{name}.json").read_text())
        for name in ("trainer-0", "trainer-1", "driver")
    }
    assert messages["driver"].peers == {"trainer": messages["trainer-0"].listen}
    assert messages["trainer-1"].listen is None
    assert messages["trainer-0"].rendezvous == messages["trainer-1"].rendezvous is not None
    assert messages["driver"].rendezvous is None
    listening = [
        messages["trainer-0"].listen,
        messages["driver"].listen,
        *(t.metrics for t in messages.values()),
    ]
    assert len(set(listening)) == 5
    await begun.finish()


async def test_each_process_sees_its_own_devices(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7,GPU-1")
    begun = await place.begin([prepare(), trainer(0, 2), trainer(1, 2), rollout(), driver("trainer")])
    await begun.all_ready()
    await begun.run.scale("rollout", 2)
    await begun.until(lambda: "rollout-1" in place.sequence("start"))
    devices = {event["name"]: event["devices"] for event in place.events() if event["event"] == "start"}
    assert devices == {
        # Preparation and driver compute without a device; the fork server was started without the variable.
        "prepare": None,
        "driver": None,
        "trainer-0": "3",
        "trainer-1": "5",
        "rollout-0": "7",
        "rollout-1": "GPU-1",
    }
    await begun.finish()


async def test_dead_process_is_restarted(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    first = begun.pid("rollout-0")
    os.kill(first, signal.SIGKILL)
    await begun.until(lambda: any("rollout-0 was killed by SIGKILL" in text for text in place.told.said))
    await begun.all_ready()
    assert begun.pid("rollout-0") != first
    assert place.sequence("start").count("rollout-0") == 2
    assert place.sequence("start").count("trainer-0") == 1
    assert (await begun.finish()).phase is Phase.SUCCEEDED


@pytest.mark.parametrize("name", ["rollout-0", "driver", "nats", "redis"])
async def test_a_process_that_hangs_is_killed_and_restarted(place: Place, name: str) -> None:
    """Check a process that exists and does nothing: its exit is never seen, and its port still accepts
    connections.
    """
    begun = await place.begin(JOB, liveness=LivenessPolicy(0.5, 0.5, 4))
    await begun.all_ready()
    stopped = begun.pid(name)
    os.kill(stopped, signal.SIGSTOP)
    await begun.until(lambda: any("no sign of life in 4 probes" in text for text in place.told.said))
    await begun.all_ready()
    assert not alive(stopped)
    assert begun.pid(name) != stopped
    messages = [text for text in place.told.said if "no sign of life" in text]
    assert len(messages) == 1
    assert messages[0].startswith(f"{name} gave no sign of life in 4 probes in a row (2 s) and was killed;")
    assert (await begun.finish()).phase is Phase.SUCCEEDED


async def test_grandchildren_end_with_their_process(place: Place) -> None:
    place.behave(rollout_0={"helper": True})
    begun = await place.begin(JOB)
    await begun.all_ready()
    helper = next(event["pid"] for event in place.events() if event["event"] == "helper")
    assert alive(helper)
    os.kill(begun.pid("rollout-0"), signal.SIGKILL)
    await begun.until(lambda: not alive(helper))
    await begun.all_ready()
    await begun.finish()
    # No process waits for the grandchild, so it disappears shortly after the kill.
    await eventually(lambda: not any(alive(pid) for pid in place.pids()))


async def test_the_ranks_of_a_group_restart_together(place: Place) -> None:
    begun = await place.begin([prepare(), trainer(0, 2), trainer(1, 2), driver("trainer")])
    await begun.all_ready()
    met = ProcessSettings.model_validate_json(
        (place.folder.settings / "trainer-0.json").read_text()
    ).rendezvous
    before = {begun.pid("trainer-0"), begun.pid("trainer-1")}
    os.kill(begun.pid("trainer-1"), signal.SIGKILL)
    await begun.until(lambda: begun.state("trainer-0") is UnitState.RESTARTING)
    await begun.all_ready()
    assert before.isdisjoint({begun.pid("trainer-0"), begun.pid("trainer-1")})
    assert not any(alive(pid) for pid in before)
    # A new rendezvous address: leftover connections of the old ranks cannot interfere.
    again = ProcessSettings.model_validate_json(
        (place.folder.settings / "trainer-0.json").read_text()
    ).rendezvous
    assert again != met
    await begun.finish()


async def test_replaced_driver_restarts_outside_the_budget(place: Place) -> None:
    place.lifecycle(max_restarts=0)
    place.behave(driver={"codes": [ExitCode.REPLACED]})
    begun = await place.begin(JOB)
    await begun.until(lambda: place.sequence("start").count("driver") == 2)
    await begun.all_ready()
    await begun.finish()


async def test_restarts_have_a_limit(place: Place) -> None:
    place.lifecycle(max_restarts=1)
    place.behave(trainer_0={"codes": [3, 3, 3]})
    begun = await place.begin(JOB)
    status = await begun.task
    assert status.phase is Phase.FAILED
    assert place.sequence("start").count("trainer-0") == 2
    assert "trainer-0 ended with code 3" in status.message
    assert "all 1 restarts are used up" in status.message
    assert str(place.folder.log_path("trainer-0")) in status.message
    assert "trainer-0 says hello, start 2" in status.message
    # Only output of the last start is quoted.
    assert "start 1" not in status.message
    nothing_left(place)


async def test_each_new_checkpoint_starts_the_count_of_restarts_anew(place: Place) -> None:
    place.lifecycle(max_restarts=1)
    begun = await place.begin(JOB)
    for starts, step in enumerate((10, 20), start=2):
        await begun.all_ready()
        (place.folder.checkpoints / f"step-{step:08d}-fence-1").mkdir(parents=True)
        os.kill(begun.pid("rollout-0"), signal.SIGKILL)
        await begun.until(lambda starts=starts: place.sequence("start").count("rollout-0") == starts)
    await begun.all_ready()
    os.kill(begun.pid("rollout-0"), signal.SIGKILL)
    status = await begun.task
    assert status.phase is Phase.FAILED
    assert place.sequence("start").count("rollout-0") == 3
    assert "all 1 restarts are used up" in status.message
    nothing_left(place)


async def test_permanent_failure_uses_its_termination_message(place: Place) -> None:
    why = "reward.py: line 3: the function raised ValueError"
    place.behave(trainer_0={"codes": [78], "why": why})
    status = await (await place.begin(JOB)).task
    assert status.phase is Phase.FAILED
    assert status.message == f"trainer-0: {why}"
    assert json.loads(place.folder.status.read_text())["message"] == status.message
    assert place.sequence("start").count("trainer-0") == 1
    nothing_left(place)


async def test_empty_termination_message_causes_a_restart(place: Place) -> None:
    """Check a termination file that exists and is empty."""
    place.behave(trainer_0={"codes": [1], "why": ""})
    begun = await place.begin(JOB)
    await begun.all_ready()
    assert place.sequence("start").count("trainer-0") == 2
    assert (await begun.finish()).phase is Phase.SUCCEEDED


async def test_termination_message_of_one_rank_counts_for_the_group(place: Place) -> None:
    """Check that the message of the failed rank is used: the other rank may have crashed because of it. A
    rank that is killed before its report writes it at the next start."""
    place.behave(trainer_0={"codes": [1] * 3}, trainer_1={"codes": [78] * 3, "why": "the loss is NaN"})
    status = await (await place.begin([prepare(), trainer(0, 2), trainer(1, 2), driver("trainer")])).task
    assert status.message == "trainer-1: the loss is NaN"


async def test_process_that_is_never_ready_is_named(place: Place) -> None:
    place.behave(trainer_0={"mute": True})
    status = await (await place.begin(JOB, ready_seconds=3)).task
    assert status.phase is Phase.FAILED
    assert (
        "trainer-0 was not ready within 3 s: waited for gRPC health of trainer-0 to say SERVING"
        in status.message
    )
    assert "trainer-0 says hello" in status.message
    nothing_left(place)


async def test_an_interruption_reaches_the_driver_first(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    servers = [begun.pid("nats"), begun.pid("redis")]
    begun.interruption.request_stop()
    status = await begun.task
    assert status.phase is Phase.STOPPED
    assert status.message == "stopped at step 0; the same command resumes from there"
    events = [
        (event["name"], event["event"]) for event in place.events() if event["event"] in ("term", "exit")
    ]
    # The driver ends before any other process is signalled.
    assert events[:2] == [("driver", "term"), ("driver", "exit")]
    assert {name for name, _ in events[2:]} == {"rollout-0", "trainer-0"}
    nothing_left(place, *servers)


async def test_a_process_that_does_not_end_is_killed_after_the_grace_period(place: Place) -> None:
    place.lifecycle(grace_period_seconds=0.5)
    place.behave(trainer_0={"deaf": True})
    begun = await place.begin(JOB)
    await begun.all_ready()
    begun.interruption.request_stop()
    assert (await begun.task).phase is Phase.STOPPED
    assert any("trainer-0 did not end within 0.5 s and was killed" in text for text in place.told.said)
    nothing_left(place)


async def test_a_second_interruption_ends_everything_at_once(place: Place) -> None:
    place.lifecycle(grace_period_seconds=10_000)
    place.behave(driver={"deaf": True}, trainer_0={"deaf": True})
    begun = await place.begin(JOB)
    await begun.all_ready()
    begun.interruption.request_stop()
    await begun.until(lambda: "driver" in place.sequence("deaf"))
    begun.interruption.request_stop()
    status = await begun.task
    assert status.message == "ended at step 0; the same command resumes from the last checkpoint"
    nothing_left(place)


async def test_an_interruption_before_anything_is_ready(place: Place) -> None:
    begun = await place.begin(JOB)
    begun.interruption.request_stop()
    assert (await begun.task).phase is Phase.STOPPED
    nothing_left(place)


async def test_a_driver_that_finishes_while_it_is_asked_to_stop_has_succeeded(place: Place) -> None:
    place.behave(driver={"stopped_code": 0})
    begun = await place.begin(JOB)
    await begun.all_ready()
    begun.interruption.request_stop()
    assert (await begun.task).phase is Phase.SUCCEEDED


async def test_the_deadline_fails_the_job(place: Place) -> None:
    place.lifecycle(active_deadline_seconds=3.0)
    status = await (await place.begin(JOB)).task
    assert status.phase is Phase.FAILED
    assert status.message == "the job has run for 3 s (lifecycle.activeDeadlineSeconds)"
    nothing_left(place)


async def test_workers_are_scaled_while_the_job_runs(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    folder = place.folder.root
    assert mode(place.folder.control) == 0o600
    names = {process["name"] for process in await scale(folder, 3)}
    assert {"rollout-0", "rollout-1", "rollout-2"} <= names
    await begun.all_ready()
    gone = begun.pid("rollout-2")
    names = {process["name"] for process in await scale(folder, 2)}
    assert "rollout-2" not in names and "rollout-1" in names
    assert not alive(gone)
    with pytest.raises(RunRefused, match="replicas of rollout is 0: it must be an integer from 1 to 1024"):
        await scale(folder, 0)
    with pytest.raises(RunRefused, match="'trainer' cannot be scaled; elastic groups of this job: rollout"):
        await scale(folder, 2, "trainer")
    assert {process["state"] for process in await list_processes(folder)} == {"Ready", "Finished"}
    assert (await begun.finish()).phase is Phase.SUCCEEDED
    with pytest.raises(RunRefused, match="no job is running"):
        await list_processes(folder)
    nothing_left(place)


async def test_shared_memory_of_a_killed_runner_is_removed(place: Place) -> None:
    place.folder.create()
    left = place.folder.claim_shared_memory()
    (left / "weights").write_bytes(b"1")
    begun = await place.begin(JOB)
    await begun.all_ready()
    assert not is_there(left)
    await begun.finish()


async def test_a_group_nobody_starts_is_an_error_not_a_hang(place: Place) -> None:
    status = await (await place.begin([prepare(), driver("nobody")])).task
    assert status.message == "there is no process group 'nobody' to wait for"


async def test_fork_server_may_die(place: Place) -> None:
    """Check that all processes of a killed fork server die with it and are restarted."""
    place.lifecycle(max_restarts=100)
    begun = await place.begin(JOB)
    await begun.all_ready()
    parent = parent_of(begun.pid("driver"))
    assert parent != os.getpid()
    before = {begun.pid(view.name) for view in begun.run.processes() if view.pid is not None}
    os.kill(parent, signal.SIGKILL)
    await begun.until(lambda: not any(alive(pid) for pid in before))
    await begun.until(lambda: begun.state("driver") is not UnitState.READY)
    await begun.all_ready()
    assert (await begun.finish()).phase is Phase.SUCCEEDED
    await asyncio.sleep(0)
    nothing_left(place)
