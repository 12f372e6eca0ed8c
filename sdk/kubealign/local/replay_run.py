"""A replay on this machine: what is trained again, checked before anything is started, and where."""

import filecmp
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.local.admission import folder_of
from kubealign.local.run_folder import RunFolder
from kubealign.local.spec_change import read_job
from kubealign.process import ProcessSettings
from kubealign.replay.comparison import last_lines
from kubealign.replay.errors import CannotReplay
from kubealign.replay.plan import Replay, read_replay
from kubealign.replay.record import FOLDER, batch_path, read_batch, read_line, recorded_steps
from kubealign.spec.job import AlignmentJob
from kubealign.spec.load import load_jobs
from kubealign.spec.overrides import BadOverride, Override

#: Of a spec: what says how batches are made and scored, or which weights there are at first.
_MADE_ALREADY = ("policy", "data", "rewards", "rollout", "validation", "reference", "teacher")
#: Larger than any gap between log-probabilities: the recorded run has passed its gate.
_ANY_GAP = 1e9


@dataclass(frozen=True)
class Planned:
    """job: to be run in `folder`. changed: whether anything of the recorded job was changed."""

    job: AlignmentJob
    folder: RunFolder
    replay: Replay
    changed: bool

    @property
    def recorded(self) -> RunFolder:
        return RunFolder(self.replay.run)


def plan_replay(
    runs_dir: Path, run: str, name: str, first: int, steps: int | None, overrides: Sequence[str]
) -> Planned:
    """Steps `first` on of the run in RUNS/run, so many of them (None: all that there are), again in
    RUNS/name.

    Raises CannotReplay, with what is missing; SpecErrors for an override that makes no sound job."""
    recorded = folder_of(runs_dir, run)
    if read_job(recorded.job) is None:
        raise CannotReplay(f"{recorded.root} holds no run")
    if name == run:
        raise CannotReplay(f"{name} is the recorded run itself: choose another --name")
    for text in overrides:
        _check_override(text)
    replay = Replay(run=recorded.root, first_step=first, last_step=_last(recorded, first, steps))
    _check_weights(recorded, first, replay.last_step)
    for step in range(first, replay.last_step + 1):
        read_batch(recorded.root / FOLDER, read_line(recorded.root / FOLDER, step))
    (job,) = load_jobs(recorded.job, overrides=overrides)
    return Planned(_only_trained(job, name), folder_of(runs_dir, name), replay, bool(overrides))


def make_folder(planned: Planned, fresh: bool) -> None:
    """The run's folder, with what was prepared for the recorded one. fresh: an earlier replay there is
    deleted first. Raises CannotReplay where the folder is another's, RunRefused where it is in use,
    OSError."""
    folder = planned.folder
    lock = folder.lock()
    lock.acquire()
    try:
        held = read_replay(folder.root)
        if held is None and folder.root.exists():
            raise CannotReplay(f"{folder.root} is there and holds no replay: choose another --name")
        if fresh:
            folder.delete()
        elif held is not None and held != planned.replay:
            raise CannotReplay(
                f"{folder.root} holds a replay of steps {held.first_step} to {held.last_step} of {held.run}: "
                "choose another --name, or delete it with --fresh"
            )
        folder.make()
        if not folder.prepared.exists():
            folder.prepared.symlink_to(planned.recorded.prepared, target_is_directory=True)
        planned.replay.write(folder.root)
    finally:
        lock.release()


def figures_of(folder: RunFolder) -> dict[int, Mapping[str, Any]]:
    """Of each step that was trained; empty before the first."""
    try:
        lines = folder.metrics.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    # A line that is still being written has no end.
    return last_lines(json.loads(line) for line in lines if line.endswith("\n"))


def threads_of(folder: RunFolder) -> int | None:
    """Threads that the trainer's first rank computes with; None where nobody has said."""
    try:
        settings = ProcessSettings.model_validate_json((folder.settings / "trainer-0.json").read_text())
    except (OSError, ValueError):
        return None
    return settings.threads


def same_weights(planned: Planned) -> bool | None:
    """Whether both results hold the same weights, byte by byte; None where the recorded run went further, or
    has no result."""
    mine, theirs = planned.folder.result, planned.recorded.result
    names = {path.name for path in theirs.glob("*.safetensors")}
    if not names or max(figures_of(planned.recorded), default=0) != planned.replay.last_step:
        return None
    if {path.name for path in mine.glob("*.safetensors")} != names:
        return False
    return all(filecmp.cmp(mine / name, theirs / name, shallow=False) for name in names)


def _last(recorded: RunFolder, first: int, steps: int | None) -> int:
    """Of the steps from `first`. Those without figures were not trained to their end."""
    batches = recorded.root / FOLDER
    there = recorded_steps(batches)
    if not there:
        raise CannotReplay(
            f"{recorded.root} was not recorded: set spec.checkpoint.recordBatches: true before it runs"
        )
    trained = figures_of(recorded)
    newest = max((step for step in there if step in trained), default=0)
    last = newest if steps is None else first + steps - 1
    if not first <= last <= newest:
        wanted = f"step {first}" if steps is None else f"steps {first} to {last}"
        raise CannotReplay(
            f"{wanted} cannot be replayed: steps 1 to {newest} of {recorded.root} were trained"
        )
    for step in range(first, last + 1):
        if step not in there or not batch_path(batches, step).exists():
            raise CannotReplay(f"step {step}: {batch_path(batches, step)} is missing")
        if step not in trained:
            raise CannotReplay(f"step {step} is missing in {recorded.metrics}")
    return last


def _check_weights(recorded: RunFolder, first: int, last: int) -> None:
    if first > 1 and not list(recorded.commits.glob(f"step-{first - 1:08d}*")):
        commits = sorted({int(path.name.split("-")[1]) for path in recorded.commits.glob("step-*")})
        starts = ", ".join(str(step + 1) for step in (0, *commits) if step < last)
        raise CannotReplay(
            f"--from-step {first}: there is no commit of step {first - 1} in {recorded.commits}; "
            f"steps that can be begun with: {starts}"
        )
    try:
        models: dict[str, str] = json.loads((recorded.prepared / "models.json").read_text())
    except (OSError, ValueError) as error:
        raise CannotReplay(f"{recorded.prepared} cannot be read: {error}") from error
    for role in ("policy", "critic"):
        folder = recorded.prepared / models[role] if role in models else None
        if folder is not None and not folder.is_dir():
            raise CannotReplay(f"the model of {role} has gone: {folder} was there when the run was prepared")


def _check_override(text: str) -> None:
    try:
        place = Override.parse(text).place
    except BadOverride as error:
        raise CannotReplay(f"--set {text}: {error}") from error
    section = place[1] if place[0] == "spec" and len(place) > 1 else None
    if section is None or section in _MADE_ALREADY or place[:3] == ("spec", "critic", "model"):
        raise CannotReplay(
            f"--set {text}: the batches and the first weights are the recorded run's; what can be changed is "
            "how they are trained on: spec.algorithm, spec.trainer, spec.critic, spec.seed"
        )


def _only_trained(job: AlignmentJob, name: str) -> AlignmentJob:
    """The job without what a replay does not do."""
    document = job.model_dump(mode="json", by_alias=True)
    document["metadata"]["name"] = name
    spec = document["spec"]
    spec |= {"validation": None, "trackers": [], "suspend": False}
    spec["checkpoint"]["recordBatches"] = False
    if job.spec.algorithm.value.samples:
        # A trainer whose processes also generate only trains here.
        spec["rollout"] |= {"placement": "Own", "mismatchGate": {"mean": _ANY_GAP}}
    else:
        # Of a validation that sampled.
        del spec["rollout"]
    return AlignmentJob.model_validate(document)
