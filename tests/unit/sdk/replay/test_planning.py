"""Planning of replays: every missing part is named before anything is started."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.local.errors import RunRefused
from kubealign.local.replay import create_replay_folder, has_same_weights, plan_replay
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.process_settings import Role
from kubealign.replay.plan import ReplayError, ReplayPlan, processes_for_run, read_replay_plan
from kubealign.replay.record import RecordedStep, batch_path, record_path
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign_services.batch.codec import digest_of
from support.bad_specs import whole_job

Made = Callable[..., RunDirectory]
DATA = b"a batch"


def record(step: int) -> RecordedStep:
    return RecordedStep(
        step=step,
        version=step - 1,
        fence=1,
        seed=1,
        sample_ids=["0/1#0"],
        groups=["0/1"],
        attempts=[0],
        algorithm_state="",
        digest=digest_of(DATA),
        size_bytes=len(DATA),
    )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a recorded run of four steps with checkpoints of the second and the fourth."""

    def make(
        algorithm: str = "ppo", changes: dict[str, Any] | None = None, name: str = "rec"
    ) -> RunDirectory:
        document = whole_job(algorithm, changes or {})
        document["metadata"]["name"] = name
        job = AlignmentJob.model_validate(document)
        folder = RunDirectory(tmp_path / name)
        folder.create()
        folder.write_job(job.model_dump_json(by_alias=True))
        batches = folder.root / "batches"
        batches.mkdir()
        for step in range(1, 5):
            batch_path(batches, step).write_bytes(DATA)
            record_path(batches, step).write_text(record(step).model_dump_json())
        folder.metrics.write_text(
            "".join(json.dumps({"step": step, "seconds/step": 1.0}) + "\n" for step in range(1, 5))
        )
        for step in (2, 4):
            (folder.checkpoints / f"step-{step:08d}").mkdir()
        for role in ("policy", "critic"):
            (folder.prepared / role).mkdir(parents=True)
        (folder.prepared / "models.json").write_text(json.dumps({"policy": "policy", "critic": "critic"}))
        return folder

    return make


def test_replay_of_all_steps_from_the_initial_weights(made: Made, tmp_path: Path) -> None:
    recorded = made()
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [])
    assert planned.replay == ReplayPlan(run=recorded.root, first_step=1, last_step=4)
    assert (planned.job.name, planned.folder.root, planned.is_changed) == ("again", tmp_path / "again", False)
    spec = planned.job.spec
    assert (spec.validation, spec.trackers, spec.checkpoint.record_batches) == (None, [], False)
    create_replay_folder(planned, fresh=False)
    assert read_replay_plan(planned.folder.root) == planned.replay
    assert planned.folder.prepared.resolve() == recorded.prepared.resolve()
    # The same command resumes the replay; a command with other steps is rejected.
    create_replay_folder(planned, fresh=False)
    with pytest.raises(ReplayError, match=r"holds a replay of steps 1 to 4 of .*rec: choose another --name"):
        create_replay_folder(plan_replay(tmp_path, "rec", "again", 3, 1, []), fresh=False)
    planned.folder.write_job(planned.job.model_dump_json(by_alias=True))
    create_replay_folder(plan_replay(tmp_path, "rec", "again", 3, 1, []), fresh=True)
    assert not planned.folder.job.exists() and recorded.prepared.is_dir()


def test_a_run_is_never_taken_for_a_replay_of_another(made: Made, tmp_path: Path) -> None:
    made()
    other = made(name="other")
    planned = plan_replay(tmp_path, "rec", "other", 1, None, [])
    for fresh in (False, True):
        with pytest.raises(ReplayError, match="other exists and holds no replay"):
            create_replay_folder(planned, fresh=fresh)
    assert other.metrics.exists()
    with pytest.raises(ReplayError, match="rec is the recorded run itself"):
        plan_replay(tmp_path, "rec", "rec", 1, None, [])


def test_directory_in_use_is_left_alone(made: Made, tmp_path: Path) -> None:
    made()
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [])
    lock = planned.folder.lock()
    lock.acquire()
    try:
        with pytest.raises(RunRefused, match="in use"):
            create_replay_folder(planned, fresh=True)
    finally:
        lock.release()


def test_replay_runs_only_trainer_critic_and_driver(made: Made, tmp_path: Path) -> None:
    made()
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [])
    before = {process.name for process in processes_for_run(planned.job, planned.recorded.root)}
    assert {"prepare", "rollout-0"} < before
    create_replay_folder(planned, fresh=False)
    result = processes_for_run(planned.job, planned.folder.root)
    assert [process.name for process in result] == ["trainer-0", "critic-0", "driver"]
    assert [process.after for process in result] == [(), (), ("trainer", "critic")]
    assert result[-1].calls == ("trainer", "critic")


def test_a_trainer_that_also_generated_only_trains(made: Made, tmp_path: Path) -> None:
    made("rloo", {"spec.rollout": {"placement": "WithTrainer"}})
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [])
    create_replay_folder(planned, fresh=False)
    (trainer, _) = processes_for_run(planned.job, planned.folder.root)
    assert (trainer.role, trainer.module) == (Role.TRAINER, "kubealign_services.roles.trainer.main")


def test_replay_from_a_checkpoint(made: Made, tmp_path: Path) -> None:
    made()
    assert plan_replay(tmp_path, "rec", "again", 3, 1, []).replay.last_step == 3
    with pytest.raises(ReplayError, match=r"no checkpoint of step 1 in .*possible first steps: 1, 3$"):
        plan_replay(tmp_path, "rec", "again", 2, None, [])
    with pytest.raises(ReplayError, match=r"steps 3 to 5 cannot be replayed: .* 1 to 4"):
        plan_replay(tmp_path, "rec", "again", 3, 3, [])


def test_untrained_recorded_step_is_left_out(made: Made, tmp_path: Path) -> None:
    recorded = made()
    lines = recorded.metrics.read_text().splitlines(keepends=True)
    recorded.metrics.write_text("".join(lines[:3]))
    assert plan_replay(tmp_path, "rec", "again", 1, None, []).replay.last_step == 3


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda run: run.job.unlink(), "rec holds no run"),
        (lambda run: [p.unlink() for p in (run.root / "batches").iterdir()], "recordBatches: true"),
        (
            lambda run: batch_path(run.root / "batches", 2).unlink(),
            "step 2: .*00000002.safetensors is missing",
        ),
        (
            lambda run: record_path(run.root / "batches", 2).unlink(),
            "step 2: .*00000002.safetensors is missing",
        ),
        (
            lambda run: batch_path(run.root / "batches", 3).write_bytes(b"A batch"),
            "step 3: .*00000003.safetensors has been altered: its checksum is",
        ),
        (lambda run: record_path(run.root / "batches", 3).write_text("{}"), "is not the record of a step"),
        (
            lambda run: record_path(run.root / "batches", 3).write_text(record(2).model_dump_json()),
            "is the record of step 2",
        ),
        (lambda run: (run.prepared / "policy").rmdir(), "the model of policy is missing: .*policy existed"),
        (lambda run: (run.prepared / "models.json").unlink(), "prepared cannot be read"),
    ],
)
def test_missing_parts_are_named(
    made: Made, tmp_path: Path, spoil: Callable[[RunDirectory], object], says: str
) -> None:
    spoil(made())
    with pytest.raises(ReplayError, match=says):
        plan_replay(tmp_path, "rec", "again", 1, None, [])


@pytest.mark.parametrize(
    "text",
    [
        "spec.data.shuffle=false",
        "spec.rollout.sampling.maxTokens=9",
        "spec.critic.model.path=/x",
        "metadata.name=x",
        "spec=1",
        "seed=1",
        "nonsense",
    ],
)
def test_overrides_of_recorded_sections_are_rejected(made: Made, tmp_path: Path, text: str) -> None:
    made()
    with pytest.raises(ReplayError, match=f"--set {text}: "):
        plan_replay(tmp_path, "rec", "again", 1, None, [text])


def test_overrides_of_training_are_accepted(made: Made, tmp_path: Path) -> None:
    made()
    rate = "spec.trainer.optimizer.adamW.learningRate"
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [f"{rate}=0.5"])
    adam = planned.job.spec.trainer.optimizer.adam_w
    assert planned.is_changed and adam is not None and adam.learning_rate == 0.5
    with pytest.raises(SpecErrors):
        plan_replay(tmp_path, "rec", "again", 1, None, [f"{rate}=-1"])


def test_results_are_compared_byte_by_byte(made: Made, tmp_path: Path) -> None:
    recorded = made()
    planned = plan_replay(tmp_path, "rec", "again", 1, None, [])
    create_replay_folder(planned, fresh=False)
    assert has_same_weights(planned) is None
    for folder, weights in ((recorded, b"12"), (planned.folder, b"12")):
        folder.result.mkdir()
        (folder.result / "model.safetensors").write_bytes(weights)
    assert has_same_weights(planned) is True
    (planned.folder.result / "model.safetensors").write_bytes(b"13")
    assert has_same_weights(planned) is False
    # A partial replay ends with other weights, so there is no verdict.
    assert has_same_weights(plan_replay(tmp_path, "rec", "part", 1, 2, [])) is None
