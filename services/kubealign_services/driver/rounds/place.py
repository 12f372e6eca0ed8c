"""How far a job is in its rounds."""

from pydantic import BaseModel, ConfigDict


class RoundPlace(BaseModel):
    """Where the next row is taken from.

    number: of the round, from 1; 0: none has begun. file, digest: what holds its rows. rows: that it takes,
    over all of its epochs; taken: those of them that were trained on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = 0
    file: str = ""
    digest: str = ""
    rows: int = 0
    taken: int = 0

    @property
    def done(self) -> bool:
        """Nothing is left of the round."""
        return self.taken >= self.rows

    def further(self, rows: int) -> "RoundPlace":
        """After so many more rows."""
        return self.model_copy(update={"taken": self.taken + rows})
