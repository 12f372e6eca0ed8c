"""Sets of stop tokens for all rows at once."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class StopTokenSets:
    """Sets of token ids, each with a number for as long as any row uses it."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int] | None] = []
        self._use_counts: list[int] = []
        self._membership: NDArray[np.bool_] = np.zeros((0, vocabulary), np.bool_)
        self._ids: Numbers = np.zeros((0, 0), np.int64)
        self._sizes: Numbers = np.zeros(0, np.int64)

    def acquire(self, ends: frozenset[int]) -> int:
        """Add one user to this set and return its number."""
        number = self._numbers.get(ends)
        if number is None:
            number = self._add(ends)
        self._use_counts[number] += 1
        return number

    def release(self, number: int) -> None:
        """Remove one user."""
        self._use_counts[number] -= 1
        ends = self._sets[number]
        if not self._use_counts[number] and ends is not None:
            del self._numbers[ends]
            self._sets[number] = None

    def contains(self, numbers: Numbers, tokens: Numbers) -> NDArray[np.bool_]:
        """Return, for each row [n], True where its token is in its set."""
        hits: NDArray[np.bool_] = self._membership[numbers, tokens]
        return hits

    def pairs(self, rows: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return (rows, tokens): each of the rows [n] combined with each token of its set."""
        sizes = self._sizes[numbers]
        is_present = np.arange(self._ids.shape[1]) < sizes[:, None]
        return np.repeat(rows, sizes), self._ids[numbers][is_present]

    def _add(self, ends: frozenset[int]) -> int:
        if None in self._sets:
            number = self._sets.index(None)
        else:
            number = len(self._sets)
            self._sets.append(None)
            self._use_counts.append(0)
            self._membership = np.concatenate((self._membership, np.zeros((1, self._vocabulary), np.bool_)))
            self._ids = np.concatenate((self._ids, np.zeros((1, self._ids.shape[1]), np.int64)))
            self._sizes = np.append(self._sizes, 0)
        # No row can draw a token that the model has no logit for.
        tokens = sorted(token for token in ends if 0 <= token < self._vocabulary)
        if len(tokens) > self._ids.shape[1]:
            wider = np.zeros((len(self._ids), len(tokens)), np.int64)
            wider[:, : self._ids.shape[1]] = self._ids
            self._ids = wider
        self._membership[number] = False
        self._membership[number, tokens] = True
        self._ids[number, : len(tokens)] = tokens
        self._sizes[number] = len(tokens)
        self._numbers[ends] = number
        self._sets[number] = ends
        return number
