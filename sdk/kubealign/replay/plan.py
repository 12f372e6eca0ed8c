"""A run that trains on what another run has recorded, and the processes that it has."""

from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.process import Role
from kubealign.replay.errors import CannotReplay
from kubealign.roles import PREPARE, Process, roles
from kubealign.spec.job import AlignmentJob

FILE = "replay.json"
_WHO = (Role.TRAINER, Role.CRITIC, Role.DRIVER)


class Replay(BaseModel):
    """RUN/replay.json of a run that makes no batches of its own. run: folder of the one that was recorded.
    Steps first_step to last_step are trained again; with first_step above 1 from the commit of the step
    before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    first_step: int = Field(ge=1)
    last_step: int = Field(ge=1)

    def write(self, run_dir: Path) -> None:
        """Whole at any moment."""
        draft = run_dir / f".{FILE}"
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        draft.replace(run_dir / FILE)


def read_replay(run_dir: Path) -> Replay | None:
    """None for a run that makes its own batches. Raises CannotReplay for a file that says nothing."""
    try:
        return Replay.model_validate_json((run_dir / FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CannotReplay(f"{run_dir / FILE} is damaged ({error.errors()[0]['msg']})") from error


def replay_roles(job: AlignmentJob) -> tuple[Process, ...]:
    """Those who train, and the driver: nothing is prepared, sampled or scored."""
    kept = [process for process in roles(job) if process.role in _WHO and process.group != PREPARE]
    groups = {process.group for process in kept}
    return tuple(
        replace(process, after=tuple(group for group in process.after if group in groups)) for process in kept
    )


def processes_of(job: AlignmentJob, run_dir: Path) -> tuple[Process, ...]:
    """The processes of the job whose run lies in this folder."""
    return roles(job) if read_replay(run_dir) is None else replay_roles(job)
