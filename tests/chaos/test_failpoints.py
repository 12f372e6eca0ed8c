"""Every failpoint with every action, once each: one job for each action."""

import json
from pathlib import Path

import pytest

from kubealign_services.runtime.failpoints import FILE, FIRED_FOLDER, Action, Failpoint
from support.chaos.checker import check_run
from support.chaos.job import NAME, write_chaos_job
from support.running import RunningJobs

STEPS = 60

#: Processes of which one reaches a failpoint; others than the driver's.
_PROCESSES = {
    "trainer": "trainer-1",
    "weights-before-publish": "trainer-0",
    "weights-after-publish": "trainer-0",
    "weights-before-apply": "rollout-1",
    "weights-after-apply": "rollout-1",
    "bus-before-publish": "reward-letters-0",
    "bus-after-publish": "reference-0",
    "bus-before-ack": "rollout-0",
    "bus-after-ack": "reward-length-0",
}


def entries(action: Action) -> list[dict[str, object]]:
    """Return an entry for each failpoint, at hits that are spread over the job."""
    return [
        {"name": name, "action": action, "process": process_of(name), "hit": hit_of(name, index)}
        for index, name in enumerate(Failpoint)
    ]


def process_of(name: Failpoint) -> str:
    default = _PROCESSES["trainer"] if name.startswith("trainer") else "driver"
    return _PROCESSES.get(name, default)


def hit_of(name: Failpoint, index: int) -> int:
    """Return how often the place is reached before it fails: places that are reached once fail then."""
    once = ("export", "resume", "load")
    return 1 if any(part in name for part in once) else 2 + index % 4


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("action", list(Action))
def test_the_job_survives_every_failpoint(
    tmp_path: Path, action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = write_chaos_job(tmp_path, STEPS, 0.05)
    folder = tmp_path / "runs" / NAME
    folder.mkdir(parents=True)
    (folder / FILE).write_text(json.dumps(entries(action)))
    with RunningJobs(jobs, tmp_path / "runs") as run:
        assert run.end(2400) == 0, run.output
        check_run(run, STEPS, [])
    fired = {int(path.name) for path in (folder / FIRED_FOLDER).iterdir()}
    missed = [name for index, name in enumerate(Failpoint) if index not in fired]
    assert missed == []
