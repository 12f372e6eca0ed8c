"""How far a job that makes data is."""

from pydantic import BaseModel, ConfigDict


class MakingState(BaseModel):
    """What has been made. The data is gone through once, in the order in which the rows lie."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    #: The next row of the job's data.
    position: int = 0
    #: Rows made, the bytes that they take, and those bytes' XXH3-64, in hexadecimal.
    rows: int = 0
    size_bytes: int = 0
    digest: str = ""
    #: Moments of the rewards, by source.
    rewards: dict[str, dict[str, float]] = {}
    #: Prompts given up after their retries.
    given_up: list[str] = []
    #: What became no row, by why: prompts, samples or pairs of samples.
    left_out: dict[str, int] = {}

    def next(self, taken: int) -> "MakingState":
        """A copy that stands one step and so many rows of the data further."""
        following = self.model_copy(deep=True)
        following.step += 1
        following.position += taken
        return following

    def leave_out(self, why: str, count: int = 1) -> None:
        """Note that so many become no row."""
        if count:
            self.left_out[why] = self.left_out.get(why, 0) + count
