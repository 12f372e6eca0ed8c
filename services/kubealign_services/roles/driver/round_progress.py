"""Progress of a job within its rounds."""

from pydantic import BaseModel, ConfigDict


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
