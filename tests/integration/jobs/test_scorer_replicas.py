"""Several processes of one reward share the rows, and the rows of a killed one are scored by another."""

import json
import os
import signal
from collections import Counter
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.running import RunningJobs, alive
from support.tiny_jobs import write_jobs, write_reward
from support.tiny_rewards import policy_folder, reward_folder

LETTERS = "abcd"
ROWS = [
    {"prompt": first + second, "response": second + third, "number": index}
    for index, (first, second, third) in enumerate(islice(product(LETTERS, repeat=3), 42))
]
#: The share of the letter a. A call records its process and its rows, and returns once the file `go` exists.
RECORDED_LETTER_A = """
import json
import os
import pathlib
import time

FOLDER = pathlib.Path({folder!r})

def worker():
    # The id of the reward's process: the parent of the supervisor that is this process's parent.
    status = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text()
    return status.rpartition(")")[2].split()[1]

WORKER = worker()

def record(event, rows):
    with (FOLDER / f"{{WORKER}}.{{event}}").open("a") as file:
        file.write(json.dumps(rows) + "\\n")

def reward(prompts, responses, number):
    record("begun", number)
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    record("ended", number)
    return [response.count("a") / len(response) for response in responses]
"""


class RewardCalls:
    """Rows of the calls of the reward function, by the id of the reward's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def rows(self, event: str) -> dict[int, list[int]]:
        return {
            int(path.stem): [row for line in path.read_text().splitlines() for row in json.loads(line)]
            for path in self.folder.glob(f"*.{event}")
        }

    def release(self) -> None:
        (self.folder / "go").touch()


def annotate_job(folder: Path, calls: RewardCalls) -> Path:
    """Return a job with one step: all rows are scored at once, by the function and by two rewards with the
    same model, the second of which has one process."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    function = write_reward(folder, RECORDED_LETTER_A.format(folder=str(calls.folder)))
    model = {"path": str(reward_folder(folder / "model", LETTERS, seed=3))}
    spec: dict[str, Any] = {
        "maxSteps": 1,
        "algorithm": {"annotate": {"rowsPerStep": len(ROWS)}},
        "policy": {"model": {"path": str(policy_folder(folder / "policy", LETTERS))}},
        "data": {"demonstrations": {"source": {"path": str(rows)}}},
        "rewards": [
            function | {"replicas": 2},
            {"name": "shared", "model": model, "replicas": 2},
            {"name": "single", "model": model},
        ],
    }
    job = {"apiVersion": "kubealign.dev/v1alpha1", "kind": "AlignmentJob", "metadata": {"name": "scored"}}
    return write_jobs(folder, job | {"spec": spec})


@pytest.mark.timeout(240)
def test_two_replicas_share_the_rows_and_one_may_be_killed(tmp_path: Path) -> None:
    calls = RewardCalls(tmp_path / "calls")
    with RunningJobs(annotate_job(tmp_path, calls), tmp_path / "runs") as run:
        run.wait_until("a call of each replica", lambda: len(calls.rows("begun")) == 2, 120)
        processes = run.processes("scored")
        assert {"reward-shared-0", "reward-shared-1", "reward-single-0"} <= processes.keys()
        killed, survivor = (processes[f"reward-letters-{replica}"]["pid"] for replica in (1, 0))
        assert calls.rows("begun").keys() == {killed, survivor}
        victims = [killed, *(child.pid for child in psutil.Process(killed).children(recursive=True))]
        os.kill(killed, signal.SIGKILL)
        run.wait_until("the end of the killed function", lambda: not alive(victims), 30)
        calls.release()
        assert run.end(120) == 0, run.output
        lines = (run.folder("scored") / "result" / "data.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    begun, ended = calls.rows("begun"), calls.rows("ended")
    assert begun[killed] and ended[survivor] and killed not in ended
    # Every row was scored once, those of the killed process by another one.
    assert Counter(chain.from_iterable(ended.values())) == Counter(range(len(ROWS)))
    assert [row["number"] for row in rows] == list(range(len(ROWS)))
    assert [row["letters"] for row in rows] == [row["response"].count("a") / 2 for row in ROWS]
    single = [row["single"] for row in rows]
    assert len(set(single)) > 1
    assert [row["shared"] for row in rows] == pytest.approx(single, abs=1e-6)
