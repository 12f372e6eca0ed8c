"""Replay plan: the recorded run and steps that a run trains on, and its processes."""

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.process_settings import Role
from kubealign.roles import Process, roles
from kubealign.spec.job import AlignmentJob


class ReplayError(Exception):
    """Part of the recorded run is missing, or has changed. The message names the part."""


FILE = "replay.json"


class ReplayPlan(BaseModel):
    """RUN/replay.json of a run that generates no batches. run: directory of the recorded run.

    Steps first_step to last_step are trained again; with first_step above 1 from the checkpoint of the
    step before. With a last_step of first_step - 1 nothing is trained, and the model of that step is
    exported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    first_step: int = Field(ge=1)
    last_step: int = Field(ge=0)

    @property
    def is_export(self) -> bool:
        """True if nothing is trained."""
        return self.last_step < self.first_step

    def write(self, run_dir: Path) -> None:
        """Write the file atomically."""
        draft = run_dir / f".{FILE}"
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        draft.replace(run_dir / FILE)


def read_replay_plan(run_dir: Path) -> ReplayPlan | None:
    """Read the plan; None for a run with batches of its own. Raises ReplayError for an invalid file."""
    try:
        return ReplayPlan.model_validate_json((run_dir / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ReplayError(f"{run_dir / FILE} is damaged ({error.errors()[0]['msg']})") from error


def replay_processes(job: AlignmentJob, exports: bool = False) -> tuple[Process, ...]:
    """Return the processes of a replay: trainer, critic and driver, without preparation, sampling and
    scoring.

    Args:
        exports: True if nothing is trained, so that the critic is not needed.
    """
    trained = [process for process in roles(job) if not process.elastic and not process.one_shot]
    replayed = [process for process in trained if not exports or process.group != Role.CRITIC]
    groups = {process.group for process in replayed}
    return tuple(
        replace(
            process,
            after=tuple(group for group in process.after if group in groups),
            calls=tuple(group for group in process.calls if group in groups),
        )
        for process in replayed
    )


def processes_for_run(job: AlignmentJob, run_dir: Path) -> tuple[Process, ...]:
    """Return the processes of the job with this run directory."""
    replay = read_replay_plan(run_dir)
    return roles(job) if replay is None else replay_processes(job, replay.is_export)
