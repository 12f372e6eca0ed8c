"""Progress of a job that generates data."""

from pydantic import BaseModel, ConfigDict


class DataGenerationState(BaseModel):
    """Progress of data generation. The job's data is read once, in order."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    #: The next row of the job's data.
    position: int = 0
    #: Number of rows generated, their bytes, and the XXH3-64 of these bytes in hexadecimal.
    rows: int = 0
    size_bytes: int = 0
    digest: str = ""
    #: Moments of the rewards, by source.
    rewards: dict[str, dict[str, float]] = {}
    #: Prompts that failed after all retries.
    given_up: list[str] = []
    #: Reason -> number of prompts, samples or pairs of samples that gave no row.
    left_out: dict[str, int] = {}

    def copy_for_next_step(self, taken: int) -> "DataGenerationState":
        """Return a copy for the next step, `taken` rows of the data further."""
        next_state = self.model_copy(deep=True)
        next_state.step += 1
        next_state.position += taken
        return next_state

    def count_skipped(self, why: str, count: int = 1) -> None:
        """Count prompts, samples or pairs that give no row, by reason."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count
