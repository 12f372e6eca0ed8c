"""Growing arrays with the tokens and log-probabilities of the running sequences."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# A response's columns grow by doubling from here.
_INITIAL_COLUMNS = 64


@dataclass(frozen=True)
class PartialResponse:
    """An unfinished response; all arrays are [n]: tokens and versions int32, log-probabilities float32."""

    tokens: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    engine_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]


class ResponseBuffer:
    """The responses of all rows, [rows, columns]: column j of row i is the j-th token of its response."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.zeros((rows, _INITIAL_COLUMNS), np.int32)
        self._behaviour = np.zeros((rows, _INITIAL_COLUMNS), np.float32)
        self._engine = np.zeros((rows, _INITIAL_COLUMNS), np.float32)
        self._versions = np.zeros((rows, _INITIAL_COLUMNS), np.int32)

    def append(
        self,
        counts: NDArray[np.int64],
        tokens: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        engine_logprobs: NDArray[np.float32],
        version: int,
    ) -> None:
        """Append one token to each of the first n rows, which have `counts` [n] tokens already."""
        if len(counts):
            self._grow(int(counts.max()) + 1)
        rows = np.arange(len(counts))
        self._tokens[rows, counts] = tokens
        self._behaviour[rows, counts] = behaviour_logprobs
        self._engine[rows, counts] = engine_logprobs
        self._versions[rows, counts] = version

    def copy_response(self, row: int, count: int) -> PartialResponse:
        """Return a copy of a row's first `count` tokens."""
        return PartialResponse(
            self._tokens[row, :count].copy(),
            self._behaviour[row, :count].copy(),
            self._engine[row, :count].copy(),
            self._versions[row, :count].copy(),
        )

    def tokens(self, row: int, count: int) -> NDArray[np.int32]:
        """Return a view of a row's first `count` tokens."""
        tokens: NDArray[np.int32] = self._tokens[row, :count]
        return tokens

    def restore(self, row: int, response: PartialResponse) -> None:
        """Set the response with which the row continues."""
        count = len(response.tokens)
        self._grow(count)
        self._tokens[row, :count] = response.tokens
        self._behaviour[row, :count] = response.behaviour_logprobs
        self._engine[row, :count] = response.engine_logprobs
        self._versions[row, :count] = response.versions

    def move(self, source: int, target: int, count: int) -> None:
        """Copy the source row's response to the target row."""
        for block in (self._tokens, self._behaviour, self._engine, self._versions):
            block[target, :count] = block[source, :count]

    def _grow(self, columns: int) -> None:
        """Grow to at least this number of columns."""
        present = self._tokens.shape[1]
        if columns <= present:
            return
        more = ((0, 0), (0, max(columns, 2 * present) - present))
        self._tokens = np.pad(self._tokens, more)
        self._behaviour = np.pad(self._behaviour, more)
        self._engine = np.pad(self._engine, more)
        self._versions = np.pad(self._versions, more)
