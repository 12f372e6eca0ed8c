"""Jobs whose rollout workers run in the trainer's processes: the same metrics and the same recovery as with
separate processes."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from kubealign.local.errors import RunRefused
from support.running import RunningJobs, left_running
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward

STEPS = 4
PROMPTS = 16
#: Between generation and update the trainer computes the reference's log-probabilities and the base of the
#: ratio.
RLOO: dict[str, Any] = {
    "rloo": {
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "minibatchSequences": 4,
        "kl": {"placement": "Reward", "fixed": {"coefficient": 0.02}},
    }
}
ENGINE = {"engine": {"torch": {"maxSequences": 64}}, "sampling": {"maxTokens": 4}}


def job(folder: Path, name: str, placement: str) -> dict[str, Any]:
    document = online_job(
        folder,
        name,
        RLOO,
        maxSteps=STEPS,
        reference={"placement": "WithTrainer"},
        rollout={"placement": placement, "scoring": "WholeBatch", **ENGINE},
        checkpoint={"everySteps": 2},
    )
    source = {"path": str(write_prompts(folder, PROMPTS))}
    document["spec"]["data"] = {"prompts": {"source": source}}
    document["spec"]["validation"] = {"everySteps": 2, "data": {"prompts": {"source": source, "limit": 4}}}
    return document


def numbers(run: RunningJobs, name: str) -> list[dict[str, float]]:
    """Return the metrics of each step that do not depend on time or placement."""
    prefixes = ("reward", "kl/", "loss", "trainer/", "response/", "rollout/logprob_gap", "val/")
    return [
        {key: value for key, value in line.items() if key == "step" or key.startswith(prefixes)}
        for line in run.metrics(name)
    ]


@pytest.mark.timeout(240)
def test_the_same_weights_and_figures_as_in_processes_of_their_own(tmp_path: Path) -> None:
    file = write_jobs(tmp_path, job(tmp_path, "own", "Own"), job(tmp_path, "with-trainer", "WithTrainer"))
    with RunningJobs(file, tmp_path / "runs") as run:
        assert run.end(200) == 0, run.output
    settings = {path.stem for path in (run.folder("with-trainer") / "settings").glob("*.json")}
    assert settings == {"prepare", "trainer-0", "reward-letters-0", "driver"}, "no process generates alone"
    assert numbers(run, "with-trainer") == numbers(run, "own")
    assert any("reward" in "".join(line) for line in numbers(run, "own")), "rewards are compared"
    before, after = (
        load_file(run.folder(name) / "result" / "model.safetensors") for name in ("own", "with-trainer")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.equal(after[name]), name


@pytest.mark.timeout(300)
def test_two_ranks_generate_and_both_tenants_come_back_after_a_kill(tmp_path: Path) -> None:
    document = job(tmp_path, "killed", "WithTrainer")
    document["spec"]["trainer"]["ranks"] = document["spec"]["rollout"]["replicas"] = 2
    document["spec"]["rollout"]["minReplicas"] = 2
    # Slows steps down on fast machines too, so that faults are injected while the job runs.
    paced = PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.3)))
    document["spec"]["rewards"] = [write_reward(tmp_path, paced)]
    with RunningJobs(write_jobs(tmp_path, document), tmp_path / "runs") as run:
        run.wait_for_step("killed", 2)
        with pytest.raises(RunRefused, match="each of the trainer's processes has one worker"):
            run.scale("killed", 3)
        run.kill("killed", "trainer-1")
        set_pace(tmp_path, 0.0)
        assert run.end(200) == 0, run.output
    history = run.history("killed")
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    trained = [prompt for line in history for prompt in line["prompts"]]
    assert sorted(trained) == sorted(f"0/{row}" for row in range(PROMPTS)), "each prompt was trained on once"
    logs = [(run.folder("killed") / "logs" / f"trainer-{rank}.log").read_text() for rank in range(2)]
    assert all(log.count("weights loaded") == 2 for log in logs), "both ranks started again"
    assert (run.folder("killed") / "result" / "config.json").exists()
    assert left_running(tmp_path) == {}
