"""Planning and set-up of a replay on this machine, checked before anything is started."""

import filecmp
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import read_job
from kubealign.local.runner.admission import run_directory
from kubealign.process_settings import ProcessSettings
from kubealign.replay.comparison import last_line_per_step
from kubealign.replay.plan import ReplayError, ReplayPlan, read_replay_plan
from kubealign.replay.record import FOLDER, batch_path, list_recorded_steps, read_batch, read_record
from kubealign.role_specs import ROLE_SPECS
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import load_jobs
from kubealign.spec.loading.overrides import InvalidOverride, Override

#: Spec sections that determine batches, scores or initial weights: fixed by the recorded run.
_RECORDED_SECTIONS = frozenset(
    {"policy", "data", "validation"}
    | {role.section for role in ROLE_SPECS.values() if role.section is not None and not role.trains}
)
#: Larger than any log-probability gap: the recorded run has already passed its mismatch gate.
_UNLIMITED_GAP = 1e9


@dataclass(frozen=True)
class PlannedReplay:
    """A planned replay.

    `job` is to be run in `folder`; `is_changed` if overrides change the recorded job.
    """

    job: AlignmentJob
    folder: RunDirectory
    replay: ReplayPlan
    is_changed: bool

    @property
    def recorded(self) -> RunDirectory:
        return RunDirectory(self.replay.run)


def plan_replay(
    runs_dir: Path, run: str, name: str, first: int, steps: int | None, overrides: Sequence[str]
) -> PlannedReplay:
    """Plan a replay in RUNS/name of `steps` steps of the run in RUNS/run from step `first` (None: all that
    exist).

    Raises ReplayError, with the missing part; SpecErrors for an override that makes the job invalid.
    """
    recorded = run_directory(runs_dir, run)
    if read_job(recorded.job) is None:
        raise ReplayError(f"{recorded.root} holds no run")
    if name == run:
        raise ReplayError(f"{name} is the recorded run itself: choose another --name")
    for text in overrides:
        _check_override(text)
    replay = ReplayPlan(run=recorded.root, first_step=first, last_step=_last_step(recorded, first, steps))
    _check_weights(recorded, first, replay.last_step)
    for step in range(first, replay.last_step + 1):
        read_batch(recorded.root / FOLDER, read_record(recorded.root / FOLDER, step))
    (job,) = load_jobs(recorded.job, overrides=overrides)
    return PlannedReplay(training_only(job, name), run_directory(runs_dir, name), replay, bool(overrides))


def create_replay_folder(planned: PlannedReplay, fresh: bool) -> None:
    """Create the run directory of the replay, with the prepared data of the recorded run.

    Args:
        fresh: Delete an earlier replay in the directory first.

    Raises ReplayError where the directory belongs to something else, RunRefused where it is in use, and
    OSError.
    """
    folder = planned.folder
    lock = folder.lock()
    lock.acquire()
    try:
        existing = read_replay_plan(folder.root)
        if existing is None and folder.root.exists():
            raise ReplayError(f"{folder.root} exists and holds no replay: choose another --name")
        if fresh:
            folder.delete()
        elif existing is not None and existing != planned.replay:
            raise ReplayError(
                f"{folder.root} holds a replay of steps {existing.first_step} to {existing.last_step} of "
                f"{existing.run}: "
                "choose another --name, or delete it with --fresh"
            )
        folder.create()
        if not folder.prepared.exists():
            folder.prepared.symlink_to(planned.recorded.prepared, target_is_directory=True)
        planned.replay.write(folder.root)
    finally:
        lock.release()


def metrics_by_step(folder: RunDirectory) -> dict[int, Mapping[str, Any]]:
    """Return the metrics of each trained step by step number; empty before the first."""
    try:
        lines = folder.metrics.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    # The last line may still be incomplete: only complete lines end with a newline.
    return last_line_per_step(json.loads(line) for line in lines if line.endswith("\n"))


def trainer_threads(folder: RunDirectory) -> int | None:
    """Return the compute threads of the trainer's rank 0; None if unknown."""
    try:
        settings = ProcessSettings.model_validate_json((folder.settings / "trainer-0.json").read_text())
    except (OSError, ValueError):
        return None
    return settings.threads


def has_same_weights(planned: PlannedReplay) -> bool | None:
    """Compare the weights of both results byte by byte.

    Returns None where the recorded run went further, or has no result.
    """
    replayed, theirs = planned.folder.result, planned.recorded.result
    names = {path.name for path in theirs.glob("*.safetensors")}
    if not names or max(metrics_by_step(planned.recorded), default=0) != planned.replay.last_step:
        return None
    if {path.name for path in replayed.glob("*.safetensors")} != names:
        return False
    return all(filecmp.cmp(replayed / name, theirs / name, shallow=False) for name in names)


def _last_step(recorded: RunDirectory, first: int, steps: int | None) -> int:
    """Return the last step to replay. Steps without metrics were not trained completely."""
    batches = recorded.root / FOLDER
    available = list_recorded_steps(batches)
    if not available:
        raise ReplayError(
            f"{recorded.root} was not recorded: set spec.checkpoint.recordBatches: true before it runs"
        )
    trained = metrics_by_step(recorded)
    newest = max((step for step in available if step in trained), default=0)
    last = newest if steps is None else first + steps - 1
    if not first <= last <= newest:
        range_text = f"step {first}" if steps is None else f"steps {first} to {last}"
        raise ReplayError(
            f"{range_text} cannot be replayed: steps 1 to {newest} of {recorded.root} were trained"
        )
    for step in range(first, last + 1):
        if step not in available or not batch_path(batches, step).exists():
            raise ReplayError(f"step {step}: {batch_path(batches, step)} is missing")
        if step not in trained:
            raise ReplayError(f"step {step} is missing in {recorded.metrics}")
    return last


def _check_weights(recorded: RunDirectory, first: int, last: int) -> None:
    if first > 1 and not list(recorded.checkpoints.glob(f"step-{first - 1:08d}*")):
        starts = ", ".join(str(step + 1) for step in (0, *recorded.checkpoint_steps()) if step < last)
        raise ReplayError(
            f"--from-step {first}: there is no checkpoint of step {first - 1} in {recorded.checkpoints}; "
            f"possible first steps: {starts}"
        )
    try:
        models: dict[str, str] = json.loads((recorded.prepared / "models.json").read_text())
    except (OSError, ValueError) as error:
        raise ReplayError(f"{recorded.prepared} cannot be read: {error}") from error
    for name in (role.model for role in ROLE_SPECS.values() if role.trains):
        folder = recorded.prepared / models[name] if name in models else None
        if folder is not None and not folder.is_dir():
            raise ReplayError(f"the model of {name} is missing: {folder} existed when the run was prepared")


def _check_override(text: str) -> None:
    try:
        path = Override.parse(text).path
    except InvalidOverride as error:
        raise ReplayError(f"--set {text}: {error}") from error
    section = path[1] if path[0] == "spec" and len(path) > 1 else None
    if section is None or section in _RECORDED_SECTIONS or path[:3] == ("spec", "critic", "model"):
        raise ReplayError(
            f"--set {text}: the batches and the initial weights are the recorded run's; a replay can change "
            "how they are trained on: spec.algorithm, spec.trainer, spec.critic, spec.seed"
        )


def training_only(job: AlignmentJob, name: str) -> AlignmentJob:
    """Return the job without the parts that a replay does not execute."""
    document = job.model_dump(mode="json", by_alias=True)
    document["metadata"]["name"] = name
    spec = document["spec"]
    spec |= {"validation": None, "trackers": [], "suspend": False}
    # The checkpoints of a replay are its own: they are not uploaded to the address of the recorded run.
    spec["checkpoint"] |= {"recordBatches": False, "keepBest": None, "uri": None, "from": None}
    if job.spec.algorithm.value.samples:
        # A trainer colocated with rollout only trains in a replay.
        spec["rollout"] |= {"placement": "Own", "mismatchGate": {"mean": _UNLIMITED_GAP}}
    else:
        # Rollout settings of a validation that sampled.
        del spec["rollout"]
    return AlignmentJob.model_validate(document)
