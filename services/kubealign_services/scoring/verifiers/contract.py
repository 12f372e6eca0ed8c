"""Contract of a verifier, and its use as a reward function."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from kubealign_services.scoring.functions.results import RewardResult


class UnusableRow(ValueError):
    """The row holds no value that the verifier can compare with."""


class Verifier(Protocol):
    """A rule that scores one response."""

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        """Return the reward, None where the rule does not apply to the row, and what the rule has read.

        Raises UnusableRow.

        Args:
            row: The columns of the row, and the length of the response in tokens as RESPONSE_LENGTH.
        """


@runtime_checkable
class BatchVerifier(Protocol):
    """A rule that scores several responses at once faster than one after the other."""

    def score_all(self, responses: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[RewardResult]:
        """Return one result per response, as `Verifier.score`. Raises UnusableRow."""


def check_columns(row: Mapping[str, Any], needed: Iterable[str]) -> None:
    """Check that a row has some columns. Raises UnusableRow."""
    missing = sorted(set(needed) - row.keys())
    if missing:
        present = ", ".join(sorted(row.keys() - {RESPONSE_LENGTH})) or "none"
        raise UnusableRow(f"the data has no column {missing[0]!r}; there are: {present}")


class VerifierFunction:
    """A verifier as a reward function.

    Args:
        columns: Columns that each row must have.
    """

    def __init__(self, verifier: Verifier | BatchVerifier, columns: Iterable[str]) -> None:
        self._verifier = verifier
        self._columns = frozenset(columns)

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], **columns: Sequence[Any]
    ) -> list[RewardResult]:
        """Return one result per response. Raises UnusableRow, also where a column is missing."""
        check_columns(columns, self._columns)
        rows = [{name: column[index] for name, column in columns.items()} for index in range(len(responses))]
        if isinstance(self._verifier, BatchVerifier):
            return self._verifier.score_all(responses, rows)
        return [self._verifier.score(response, row) for response, row in zip(responses, rows, strict=True)]
