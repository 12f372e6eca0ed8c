"""Episodes of two sequences through the real command: a plan, and an answer that sees only the plan."""

import signal
from pathlib import Path

import pytest

from kubealign.replay.record import read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.samples import merge_samples
from support.running import RunningJobs, left_running, run_command
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward

pytestmark = pytest.mark.timeout(400)

PROMPTS, STEPS, SAMPLES = 16, 4, 2

FLOW = """
async def workflow(episode):
    await episode.generate(max_tokens=2)
    solver = episode.branch(tokens=[*episode.transcript.tokens, *episode.prompt_tokens])
    answer = await solver.generate(max_tokens=3)
    if solver.put("cd"):
        await solver.generate(max_tokens=2)
    solver.reward(answer.text.count("a"))
"""


def test_an_epoch_with_a_killed_worker_and_a_resume_trains_on_both_sequences_of_each_sample(
    tmp_path: Path,
) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    workflow = {"function": {"file": {"path": str(tmp_path / "flow.py")}}}
    paced = write_reward(tmp_path, PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.5))))
    job = online_job(
        tmp_path,
        "branches",
        {"grpo": {"promptsPerStep": PROMPTS // STEPS, "samplesPerPrompt": SAMPLES, "minibatchSequences": 4}},
        maxSteps=STEPS,
        rollout={
            "sampling": {"maxTokens": 12, "minTokens": 12},
            "workflow": workflow,
            "maxSequencesPerSample": 2,
        },
        rewards=[paced, {"name": "answered", "episode": {}}],
        checkpoint={"everySteps": 1, "recordBatches": True},
        lifecycle={"maxRestarts": 10},
    )
    job["spec"]["data"] = {"prompts": {"source": {"path": str(write_prompts(tmp_path, PROMPTS))}}}
    runs = tmp_path / "runs"
    with RunningJobs(write_jobs(tmp_path, job), runs, "--no-dashboard") as run:
        run.wait_for_step("branches", 1)
        run.kill("branches", "rollout-0")
        run.wait_for_step("branches", 2)
        run.send(signal.SIGINT)
        assert run.end(60) == 128 + signal.SIGINT, run.output
        run.start()
        assert run.end(200) == 0, run.output
        history, steps = run.history("branches"), run.steps("branches")
    trained = [prompt for line in history for prompt in line["prompts"]]
    assert sorted(trained) == sorted(f"0/{row}" for row in range(PROMPTS))
    for step in range(1, STEPS + 1):
        metrics = steps[step]
        # Four prompts with two samples of two sequences; two minibatches of four samples.
        assert (metrics["batch/sequences"], metrics["rollout/sequences_per_sample"]) == (16, 2)
        assert metrics["rollout/turns"] == 3
        # The trainer computes the same log-probabilities of both sequences as the engine has sampled with.
        assert metrics["rollout/logprob_gap_max"] < 1e-3
        check_batch(recorded_batch(run.folder("branches") / "batches", step))
    replayed = run_command("replay", "branches", "--runs-dir", str(runs), timeout=200)
    assert replayed.code == 0, replayed.output
    assert (
        f"metrics of {STEPS} steps: equal bit for bit\nfinal weights: equal bit for bit\n" in replayed.output
    )
    assert left_running(tmp_path) == {}


def recorded_batch(folder: Path, step: int) -> Batch:
    """Return the batch of a step."""
    record = read_record(folder, step)
    return decode(
        batch_pb2.PackedBatch(
            sample_ids=record.sample_ids, columns=read_batch(folder, record), digest=record.digest
        )
    )


def check_batch(batch: Batch) -> None:
    """Check tokens, masks and rewards of the eight episodes of a step."""
    samples = merge_samples(batch)
    assert len(samples) == 8 and len(set(samples.sample_ids)) == 8
    starts = batch.cu_seqlens.tolist()
    for index in range(0, len(batch), 2):
        plan, answer = (batch.select([each]) for each in (index, index + 1))
        assert plan.sample_ids[0].removesuffix("/0") == answer.sample_ids[0].removesuffix("/1")
        # The answer follows the two tokens of the plan and the two of the prompt, and two are put within it.
        assert plan.token("loss_mask").tolist() == [0, 0, 1, 1]
        assert answer.token("loss_mask").tolist() == [0] * 4 + [1] * 3 + [0] * 2 + [1] * 2
        assert answer.tokens[:4].tolist() == [*plan.tokens[2:].tolist(), *plan.tokens[:2].tolist()]
        assert (plan.token("weight_version") >= 0).tolist() == plan.token("loss_mask").bool().tolist()
        rewards = batch.sequence("reward.answered")[index : index + 2].tolist()
        assert rewards[0] == rewards[1]
        turns = batch.token("turn_reward.answered")
        # The whole reward of the episode stands at its last token.
        assert turns[starts[index] : starts[index + 2] - 1].count_nonzero() == 0
        assert float(turns[starts[index + 2] - 1]) == rewards[1]
