"""What the driver remembers between steps. It travels with every TrainStep and lies in every commit."""

from pydantic import BaseModel, ConfigDict

from kubealign_services.data.order import Cursor
from kubealign_services.driver.rounds.place import RoundPlace


class JobState(BaseModel):
    """How far the job is. JSON; small: it is sent with every step.

    Weight versions are steps: one TrainStep makes one version.
    """

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    #: Where the next prompt (or row) is taken from.
    cursor: Cursor = Cursor()
    #: Prompts taken from the cursor and not trained on yet, oldest first: the first to be asked for after a
    #: restart.
    unfinished: list[str] = []
    #: Prompts of the step that made this state.
    trained: list[str] = []
    #: What the algorithm keeps from step to step (an adaptive coefficient, say).
    algorithm: dict[str, float] = {}
    #: Moments of the rewards, by source.
    rewards: dict[str, dict[str, float]] = {}
    #: Prompts given up after their retries, since the start of the job.
    given_up: list[str] = []
    #: Of a method in rounds.
    round: RoundPlace = RoundPlace()
    #: The last measurement under val/, and the step it was made at.
    validation: dict[str, float] = {}
    validated_step: int | None = None
    #: Why the job ends before maxSteps; empty: it does not.
    finished: str = ""

    @property
    def version(self) -> int:
        return self.step

    def next(self) -> "JobState":
        """A copy that stands one step further."""
        return self.model_copy(deep=True, update={"step": self.step + 1})
