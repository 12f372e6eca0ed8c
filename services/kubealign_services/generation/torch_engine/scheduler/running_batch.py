"""The running batch: row i of every array belongs to the i-th sequence of the next pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kubealign_services.generation.contract import FinishReason
from kubealign_services.generation.torch_engine.kv_cache.page_pool import Pages
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS
from kubealign_services.generation.torch_engine.sampling.philox import uniform_numbers
from kubealign_services.generation.torch_engine.sampling.sampler import SamplingInputs
from kubealign_services.generation.torch_engine.sampling.stop_tokens import StopTokenSets
from kubealign_services.generation.torch_engine.scheduler.response_buffer import (
    PartialResponse,
    ResponseBuffer,
)
from kubealign_services.generation.torch_engine.scheduler.wait_queue import SampleState

Decode = Callable[[Sequence[int]], str]

# Tokens between two searches for stop strings: the surplus tokens cost less than a search at every token.
STOP_SEARCH_INTERVAL = 4


@dataclass(frozen=True)
class FinishedRow:
    """A row whose response ends after `token_count` tokens. text: set where it is already known."""

    row: int
    finish: FinishReason
    token_count: int
    text: str | None = None


class RunningBatch:
    """The running sequences and, as arrays [max_sequences], the values that each step needs of them."""

    def __init__(self, max_sequences: int, most_pages: int, vocabulary: int, device: torch.device) -> None:
        self.samples: list[SampleState] = []
        self.responses = ResponseBuffer(max_sequences)
        self._device = device
        self._stop_token_sets = StopTokenSets(vocabulary)
        # Pages [rows, most]; the number of pages of each row; the position of its newest token.
        self._page_tables = np.zeros((max_sequences, most_pages), np.int32)
        self._page_counts = np.zeros(max_sequences, np.int64)
        self._position = np.zeros(max_sequences, np.int64)
        self._newest_tokens = np.zeros(max_sequences, np.int64)
        self._token_counts = np.zeros(max_sequences, np.int64)
        self._max_tokens = np.zeros(max_sequences, np.int64)
        self._min_tokens = np.zeros(max_sequences, np.int64)
        self._stop_token_set = np.zeros(max_sequences, np.int64)
        self._has_stop_strings = np.zeros(max_sequences, np.bool_)
        self._epoch = np.zeros(max_sequences, np.int64)
        self._seed = np.zeros(max_sequences, np.uint64)
        self._temperature = np.zeros(max_sequences, np.float32)
        self._top_k = np.zeros(max_sequences, np.int64)
        self._top_p = np.zeros(max_sequences, np.float64)
        # Part of the sampling inputs that stays valid while the rows stay the same.
        self._settings: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def add(
        self, sample: SampleState, response: PartialResponse | None, pages: Pages, positions: int, epoch: int
    ) -> None:
        """Append a row for a sample.

        Args:
            positions: Position of the sample's next token.
            epoch: Cache epoch of its pages.
        """
        row = len(self)
        request, sampling = sample.group.request, sample.group.request.sampling
        self._page_tables[row, : len(pages)] = pages
        self._page_counts[row] = len(pages)
        # `append` increments it.
        self._position[row] = positions - 1
        self._token_counts[row] = 0 if response is None else len(response.tokens)
        self._max_tokens[row] = sampling.max_tokens
        self._min_tokens[row] = sampling.min_tokens if sample.group.end_tokens else 0
        self._stop_token_set[row] = self._stop_token_sets.acquire(sample.group.end_tokens)
        self._has_stop_strings[row] = sample.stops is not None
        self._epoch[row] = epoch
        self._seed[row] = request.seeds[sample.index] & 0xFFFFFFFFFFFFFFFF
        self._temperature[row] = sampling.temperature
        self._top_k[row] = sampling.top_k
        self._top_p[row] = sampling.top_p
        if response is not None:
            self.responses.restore(row, response)
        self.samples.append(sample)
        self._settings.clear()

    def newest_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Pages]:
        """Return views of the newest token of every row, its position, and the rows' page tables."""
        n = len(self)
        most = int(self._position[:n].max()) // PAGE_TOKENS + 1 if n else 0
        return self._newest_tokens[:n], self._position[:n], self._page_tables[:n, :most]

    def rows_without_page(self) -> NDArray[np.int64]:
        """Return the rows whose newest token has no page yet."""
        n = len(self)
        return np.flatnonzero(self._position[:n] >= self._page_counts[:n] * PAGE_TOKENS)

    def append_pages(self, rows: NDArray[np.int64], pages: Pages) -> None:
        """Append one page to each of the rows."""
        self._page_tables[rows, self._page_counts[rows]] = pages
        self._page_counts[rows] += 1

    def pages(self, row: int) -> Pages:
        """Return a view of the row's pages."""
        pages: Pages = self._page_tables[row, : self._page_counts[row]]
        return pages

    def epoch(self, row: int) -> int:
        return int(self._epoch[row])

    def token_count(self, row: int) -> int:
        """Return the number of tokens of the row's response."""
        return int(self._token_counts[row])

    def youngest(self) -> int:
        """Return the row of the youngest sample."""
        return max(range(len(self)), key=lambda row: self.samples[row].age_key)

    def sampling_inputs(self) -> SamplingInputs:
        """Return the sampling inputs for the next token of every row."""
        n = len(self)
        if not self._settings:
            temperature, top_k, top_p = self._temperature[:n], self._top_k[:n], self._top_p[:n]
            self._settings.update(
                temperature=self._tensor(temperature),
                top_k=self._tensor(top_k),
                top_p=self._tensor(top_p),
                has_truncation=bool(((top_k > 0) | (top_p < 1)).any()),
                has_greedy=bool((temperature == 0).any()),
            )
        uniform = uniform_numbers(self._seed[:n], self._token_counts[:n].astype(np.uint64))
        return SamplingInputs(uniform=self._tensor(uniform), forbidden=self._forbidden(n), **self._settings)

    def append(
        self,
        tokens: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        engine_logprobs: NDArray[np.float32],
        version: int,
    ) -> list[FinishedRow]:
        """Append the next token to every row; all arrays are [n].

        Return the rows that end, in ascending order.
        """
        n = len(self)
        counts = self._token_counts[:n]
        self.responses.append(counts, tokens, behaviour_logprobs, engine_logprobs, version)
        self._newest_tokens[:n] = tokens
        counts += 1
        self._position[:n] += 1
        at_end = self._stop_token_sets.contains(self._stop_token_set[:n], tokens)
        at_most = counts >= self._max_tokens[:n]
        to_search = self._has_stop_strings[:n] & (counts % STOP_SEARCH_INTERVAL == 0)
        rows = np.flatnonzero(at_end | at_most | to_search)
        endings = (self._check_finished(row, bool(at_end[row]), bool(at_most[row])) for row in rows.tolist())
        return [ending for ending in endings if ending is not None]

    def _check_finished(self, row: int, at_end: bool, at_most: bool) -> FinishedRow | None:
        count = self.token_count(row)
        sample = self.samples[row]
        if sample.stops is not None:
            # An end token is not part of the text, so it cannot complete a stop string.
            tokens = self.responses.tokens(row, count - at_end).tolist()
            match = sample.stops.scan(tokens, sample.group.request.sampling.min_tokens)
            if match is not None:
                return FinishedRow(row, FinishReason.STOP, *match)
        if at_end:
            return FinishedRow(row, FinishReason.STOP, count)
        return FinishedRow(row, FinishReason.LENGTH, count) if at_most else None

    def remove(self, rows: list[int]) -> None:
        """Remove these rows (ascending). The last remaining rows move into the gaps."""
        if not rows:
            return
        for row in rows:
            self._stop_token_sets.release(int(self._stop_token_set[row]))
        remaining = len(self) - len(rows)
        gone = set(rows)
        targets = [row for row in rows if row < remaining]
        sources = [row for row in range(remaining, len(self)) if row not in gone]
        for source, target in zip(sources, targets, strict=True):
            self.samples[target] = self.samples[source]
            self._page_tables[target, : self._page_counts[source]] = self.pages(source)
            self.responses.move(source, target, self.token_count(source))
        for column in (
            *(
                self._page_counts,
                self._position,
                self._newest_tokens,
                self._token_counts,
                self._max_tokens,
                self._min_tokens,
            ),
            *(self._stop_token_set, self._has_stop_strings, self._epoch, self._seed),
            *(self._temperature, self._top_k, self._top_p),
        ):
            column[targets] = column[sources]
        del self.samples[remaining:]
        self._settings.clear()

    def _forbidden(self, n: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the (row, token) pairs that forbid end tokens to rows with fewer than min_tokens."""
        young = np.flatnonzero(self._token_counts[:n] < self._min_tokens[:n])
        if not len(young):
            return None
        rows, tokens = self._stop_token_sets.pairs(young, self._stop_token_set[young])
        return self._tensor(rows), self._tensor(tokens)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
