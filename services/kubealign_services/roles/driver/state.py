"""Driver state between steps. It is sent with every TrainStep and stored in every checkpoint."""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.streaming.row_stream import StreamState


class RoundProgress(BaseModel):
    """Position of the next row.

    number: number of the round, from 1; 0: none has begun. file, digest: file with its rows. rows: rows of
    the round over all epochs; taken: rows that were trained on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = 0
    file: str = ""
    digest: str = ""
    rows: int = 0
    taken: int = 0

    @property
    def is_done(self) -> bool:
        """True if no row of the round is left."""
        return self.taken >= self.rows

    def advance(self, rows: int) -> "RoundProgress":
        """Return the progress after `rows` more rows."""
        return self.model_copy(update={"taken": self.taken + rows})


class CurriculumState(BaseModel):
    """Progress of a curriculum.

    epoch: epoch of the latest draw; -1: there was none. pools_step: step up to which the mean rewards assign
    the pools of this epoch. passed: source (empty without a mixture) -> number of draws of its easy and of
    its hard prompts in this epoch so far, whether taken or skipped. skipped: draws skipped since the start
    of the job.

    dropped: prompts that dynamic sampling dropped from the step that made the state. mean_rewards: those of
    the step's prompts (`trained` of the job's state), then of the dropped ones. digest: of the mean rewards
    of all steps, xxh3-128 in hexadecimal, empty before the first step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epoch: int = -1
    pools_step: int = 0
    passed: dict[str, list[int]] = {}
    skipped: int = 0
    dropped: list[str] = []
    mean_rewards: list[float | None] = []
    digest: str = ""


class JobState(BaseModel):
    """Progress of the job. Serialised as JSON; kept small, since it is sent with every step.

    Weight versions are steps: one TrainStep makes one version.
    """

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    #: Position of the next prompt (or row) in the data.
    cursor: EpochCursor = EpochCursor()
    #: State of streamed rows beside the cursor; None: the rows are prepared, or none was streamed yet.
    stream: StreamState | None = None
    #: Prompts taken from the cursor and not trained on yet, oldest first. A restart requests them first.
    unfinished: list[str] = []
    #: Prompts of the step that made this state.
    trained: list[str] = []
    #: State of the algorithm between steps, such as an adaptive coefficient.
    algorithm: dict[str, float] = {}
    #: Moments of the rewards by source.
    rewards: dict[str, dict[str, float]] = {}
    #: Prompts that failed after all retries, since the start of the job.
    given_up: list[str] = []
    #: Progress within the rounds of an iterative algorithm.
    round: RoundProgress = RoundProgress()
    #: Progress of the curriculum of the prompts; None: there is no curriculum.
    curriculum: CurriculumState | None = None
    #: The validation metrics of the latest step at which rows were measured, and that step.
    validation: dict[str, float] = {}
    validated_step: int | None = None
    #: Best value of the metric of early stopping so far, and number of validations since then.
    best_validation: float | None = None
    validations_since_best: int = 0
    #: Reason to end the job before maxSteps; empty: none.
    finished: str = ""
    #: Name of a validation set, empty for the rows of validation.data -> step of its latest measurement.
    validated_sets: dict[str, int] = {}

    def measured_step(self, set_name: str | None) -> int | None:
        """Return the step of the latest measurement of a validation set (None: the rows of validation.data);
        None: it was not measured.
        """
        if not self.validated_sets and set_name is None:
            # States of earlier versions.
            return self.validated_step
        return self.validated_sets.get(set_name or "")

    def add_validation(self, set_names: Iterable[str | None], metrics: Mapping[str, float]) -> None:
        """Add what was measured of validation sets at this step."""
        earlier = self.validation if self.validated_step == self.step else {}
        self.validation = {**earlier, **metrics}
        self.validated_step = self.step
        self.validated_sets = self.validated_sets | {name or "": self.step for name in set_names}

    @property
    def version(self) -> int:
        """Version of the policy's weights."""
        return self.step

    def copy_for_next_step(self) -> "JobState":
        """Return a copy for the next step."""
        return self.model_copy(deep=True, update={"step": self.step + 1})
