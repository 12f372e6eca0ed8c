"""Growing arrays with the tokens and log-probabilities of the running sequences."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A response's columns grow by doubling from here.
_FIRST_COLUMNS = 64


@dataclass(frozen=True)
class Response:
    """An unfinished response; all arrays are [n]: tokens and versions int32, log-probabilities float32."""

    tokens: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    engine_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]


class Responses:
    """The responses of all rows, [rows, columns]: column j of row i is the j-th token of its response."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.zeros((rows, _FIRST_COLUMNS), np.int32)
        self._behaviour = np.zeros((rows, _FIRST_COLUMNS), np.float32)
        self._engine = np.zeros((rows, _FIRST_COLUMNS), np.float32)
        self._versions = np.zeros((rows, _FIRST_COLUMNS), np.int32)

    def append(
        self,
        made: NDArray[np.int64],
        tokens: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        engine_logprobs: NDArray[np.float32],
        version: int,
    ) -> None:
        """Append one token to each of the first n rows, which have `made` [n] tokens already."""
        if len(made):
            self._hold(int(made.max()) + 1)
        rows = np.arange(len(made))
        self._tokens[rows, made] = tokens
        self._behaviour[rows, made] = behaviour_logprobs
        self._engine[rows, made] = engine_logprobs
        self._versions[rows, made] = version

    def of(self, row: int, made: int) -> Response:
        """Return a copy of a row's first `made` tokens."""
        return Response(
            self._tokens[row, :made].copy(),
            self._behaviour[row, :made].copy(),
            self._engine[row, :made].copy(),
            self._versions[row, :made].copy(),
        )

    def tokens(self, row: int, made: int) -> NDArray[np.int32]:
        """Return a view of a row's first `made` tokens."""
        tokens: NDArray[np.int32] = self._tokens[row, :made]
        return tokens

    def put(self, row: int, response: Response) -> None:
        """Set the response with which the row continues."""
        count = len(response.tokens)
        self._hold(count)
        self._tokens[row, :count] = response.tokens
        self._behaviour[row, :count] = response.behaviour_logprobs
        self._engine[row, :count] = response.engine_logprobs
        self._versions[row, :count] = response.versions

    def move(self, source: int, target: int, made: int) -> None:
        """Copy the source row's response to the target row."""
        for block in (self._tokens, self._behaviour, self._engine, self._versions):
            block[target, :made] = block[source, :made]

    def _hold(self, columns: int) -> None:
        """Grow to at least this number of columns."""
        present = self._tokens.shape[1]
        if columns <= present:
            return
        more = ((0, 0), (0, max(columns, 2 * present) - present))
        self._tokens = np.pad(self._tokens, more)
        self._behaviour = np.pad(self._behaviour, more)
        self._engine = np.pad(self._engine, more)
        self._versions = np.pad(self._versions, more)
