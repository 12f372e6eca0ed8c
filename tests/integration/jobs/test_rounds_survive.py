"""kill -9 during a round's sampling and during its training: the rounds and the final weights equal those of
an undisturbed run."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from xxhash import xxh3_128_hexdigest

from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles, StoredRound
from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_reward

#: Four steps per round.
ENTRY = {"rounds": 3, "promptsPerRound": 16, "samplesPerPrompt": 2, "rowsPerStep": 4}


def job(folder: Path, name: str) -> dict[str, Any]:
    document = online_job(
        folder,
        name,
        {"rejectionSampling": ENTRY},
        maxSteps=100,
        checkpoint={"everySteps": 2},
        lifecycle={"maxRestarts": 20},
    )
    reward = PACED_LETTER_A.format(file=str(set_pace(folder, 0.05)))
    document["spec"]["rewards"] = [write_reward(folder, reward)]
    return document


def rounds(run: RunningJobs, name: str) -> list[StoredRound]:
    folder = run.folder(name)
    paths = sorted((folder / "rounds").iterdir())
    return [RoundFiles(folder).read(path.name, xxh3_128_hexdigest(path.read_bytes())) for path in paths]


@pytest.mark.timeout(280)
def test_killed_and_undisturbed_runs_are_the_same(tmp_path: Path) -> None:
    with RunningJobs(
        write_jobs(tmp_path, job(tmp_path, "killed"), job(tmp_path, "steady")),
        tmp_path / "runs",
        "--no-dashboard",
    ) as run:
        run.wait_for_step("killed", 2)
        run.kill("killed", "trainer-0")
        # Sampling of the next round begins when its prompts are requested.
        set_pace(tmp_path, 0.5)
        run.wait_for_step("killed", 4)
        run.kill("killed", "driver")
        run.wait_for_step("killed", 6)
        run.kill("killed", "driver")
        set_pace(tmp_path, 0.05)
        run.kill("killed", "rollout-0")
        assert run.end(240) == 0, run.output
        left, right = rounds(run, "killed"), rounds(run, "steady")
        history = {name: run.history(name) for name in ("killed", "steady")}
        results = [load_file(run.folder(name) / "result" / "model.safetensors") for name in history]
        round_folders = sorted((run.folder("killed") / "rounds").iterdir())
    assert len({line["fence"] for line in history["killed"]}) >= 3
    assert len(round_folders) == 3, "no round was made twice"
    assert [line["prompts"] for line in history["killed"]] == [line["prompts"] for line in history["steady"]]
    asked = [prompt for round_ in left for prompt in round_.header.prompts]
    assert len(set(asked)) == 48
    assert [round_.header.weights for round_ in left] == [round_.header.weights for round_ in right]
    for round_, other in zip(left, right, strict=True):
        assert round_.batch.sample_ids == other.batch.sample_ids
        assert round_.batch.tokens.tolist() == other.batch.tokens.tolist()
    assert all(bool((results[0][name] == results[1][name]).all()) for name in results[0])
