"""Scheduler: decides for each pass which sequences run, start or give back their pages. Computes no tensor.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.contract import Finish, GeneratedSample, GenerationRequest
from kubealign_services.generation.torch_engine.admission import Part, admit
from kubealign_services.generation.torch_engine.batching import ragged
from kubealign_services.generation.torch_engine.line import Entry, Group, Sample, WaitingLine
from kubealign_services.generation.torch_engine.page_cache import PageCache
from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS, RaggedBatch
from kubealign_services.generation.torch_engine.sequences import Decode, Ended, RunningRows
from kubealign_services.generation.torch_engine.stops import StopStrings


@dataclass(frozen=True)
class Step:
    """One pass, and the use of its logits.

    batch: None where nothing is to be computed. The first `running` logits belong to the running rows;
    then, in row order, those of `entries` follow: (entry, number of rows that draw from the logits after
    its text, True where these are computed in this pass; otherwise the entry has them). sources, targets:
    pages to copy after the pass.
    """

    batch: RaggedBatch | None
    running: int
    entries: list[tuple[Entry, int, bool]]
    sources: list[int]
    targets: list[int]


class Schedule:
    """The samples of all requests, from the wait queue over the running rows to their end. rows, queue and
    cache are public for reading.
    """

    def __init__(self, rows: RunningRows, cache: PageCache, max_sequences: int, prefill_tokens: int) -> None:
        self.rows = rows
        self.cache = cache
        self.line = WaitingLine()
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.preemptions = 0
        self._max_sequences = max_sequences
        self._prefill_tokens = prefill_tokens
        self._arrivals = 0

    def __bool__(self) -> bool:
        """Return True while any sample runs or waits."""
        return bool(len(self.rows) or self.line.samples())

    @property
    def running(self) -> int:
        """Number of samples that have started and not ended."""
        paused = sum(entry.paused is not None for entry in self.line)
        return len(self.rows) + paused

    def add(self, request: GenerationRequest, ends: frozenset[int]) -> None:
        """Queue a request.

        Args:
            ends: Token ids that end its responses.
        """
        group = Group(request, self._arrivals, ends)
        self._arrivals += 1
        tokens = np.array(request.prompt_tokens, np.int64)
        self.line.insert(Entry(group, tokens, 0, len(request.seeds)))

    def abort(self, request_id: str) -> None:
        """Drop all samples of a request."""
        waiting = self.line.of(request_id)
        for entry in waiting:
            self._give_back(entry)
        self.line.drop(waiting)
        samples = enumerate(self.rows.samples)
        self._leave([row for row, each in samples if each.group.request.request_id == request_id])

    def clear(self) -> None:
        """Drop all samples."""
        self.interrupt()
        self.line.clear()

    def next(self, decode: Decode) -> Step:
        """Return the next pass, which must be executed; where it fails, call `preempt_all`.

        Args:
            decode: Maps tokens to text.
        """
        self._make_room()
        running = len(self.rows)
        free = self._max_sequences - running
        waiting = {id(entry) for entry in self.line if entry.pages is None}
        parts = admit(self.line, self.cache, running, free, self._prefill_tokens)
        for part in parts:
            self.prefilled_tokens += part.end - part.start
            self.reused_tokens += part.start if id(part.entry) in waiting else 0
        batch = ragged(self.rows, parts)
        complete = [part for part in parts if part.end == len(part.entry.tokens)]
        entries = [(part.entry, part.entering, part.end > part.start) for part in complete]
        copies = [(part.shared_last, part.own) for part in complete if len(part.own)]
        for part in complete:
            self._enter(part, decode)
        self.line.drop([part.entry for part in complete if not part.entry.remaining])
        return Step(
            batch,
            running,
            entries,
            sources=[source for source, own in copies for _ in own],
            targets=[target for _, own in copies for target in own.tolist()],
        )

    def made(
        self,
        tokens: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        engine_logprobs: NDArray[np.float32],
        version: int,
        decode: Decode,
    ) -> list[GeneratedSample]:
        """Record the sampled tokens of the rows; all arrays are [rows]. Return the samples that ended."""
        ended = self.rows.append(tokens, behaviour_logprobs, engine_logprobs, version)
        samples = [self._finished(each, decode) for each in ended]
        self._leave([each.row for each in ended])
        return samples

    def interrupt(self) -> None:
        """Preempt all running samples: they release their pages and are recomputed with the tokens generated
        so far.
        """
        for row in range(len(self.rows)):
            self._pause(row)
        self._leave([*range(len(self.rows))])
        self.renew()

    def renew(self) -> None:
        """Invalidate the cache after a weight change: running samples keep their pages, which no other sample
        may share.
        """
        for entry in self.line:
            self._give_back(entry)
        self.cache.flush()

    def _make_room(self) -> None:
        """Allocate a page for each running row that needs one; where too few are available, preempt the
        youngest samples.
        """
        while len(hungry := self.rows.hungry()) > self.cache.available:
            row = self.rows.youngest()
            entry = self.line.youngest_with_pages()
            if entry is not None and entry.order > self.rows.samples[row].order:
                self._give_back(entry)
            else:
                self._pause(row)
                self._remember(row, self.rows.made(row))
                self._leave([row])
            self.preemptions += 1
        self.rows.feed(hungry, self.cache.take(len(hungry)))

    def _enter(self, part: Part, decode: Decode) -> None:
        """Start the chunk's samples in the next rows."""
        entry = part.entry
        assert entry.pages is not None
        length = len(entry.tokens)
        own = iter(part.own)
        for number in range(part.entering):
            pages = entry.pages
            if not (part.gives and number == part.entering - 1):
                full = pages[: length // PAGE_TOKENS]
                self.cache.share(full)
                pages = np.concatenate((full, [next(own)])) if len(full) < len(pages) else full
            sample = entry.paused or self._sample(entry.group, entry.first + number, decode)
            self.rows.enter(sample, entry.response, pages, length, self.cache.epoch)
        entry.first += part.entering
        if part.gives:
            entry.pages, entry.done = None, 0

    def _sample(self, group: Group, index: int, decode: Decode) -> Sample:
        stop = group.request.sampling.stop
        return Sample(group, index, time.monotonic(), StopStrings(decode, stop) if stop else None)

    def _pause(self, row: int) -> None:
        """Queue the row's sample again; the caller removes the row."""
        sample = self.rows.samples[row]
        response = self.rows.responses.of(row, self.rows.made(row))
        tokens = np.concatenate((sample.group.request.prompt_tokens, response.tokens)).astype(np.int64)
        self.line.insert(Entry(sample.group, tokens, sample.index, sample.index + 1, sample, response))

    def _give_back(self, entry: Entry) -> None:
        """Release the entry's pages; its text will be recomputed."""
        if entry.pages is not None:
            self.cache.release(entry.pages)
        entry.pages, entry.done, entry.logits = None, 0, None

    def _remember(self, row: int, made: int) -> None:
        """Register the pages of the row's prompt and first `made` tokens, for later requests with the same
        prefix.
        """
        if self.rows.epoch(row) == self.cache.epoch:
            # The newest token has no cached keys and values yet.
            response = self.rows.responses.tokens(row, made)[:-1]
            prompt = self.rows.samples[row].group.request.prompt_tokens
            text = np.concatenate((prompt, response)).astype(np.int64)
            self.cache.know(text, self.rows.pages(row))

    def _finished(self, ended: Ended, decode: Decode) -> GeneratedSample:
        row, count = ended.row, ended.made
        self._remember(row, count)
        sample = self.rows.samples[row]
        response = self.rows.responses.of(row, count)
        tokens = response.tokens.tolist()
        text = ended.text
        if text is None:
            # The end token is not part of the text.
            text = decode(tokens[:-1] if ended.finish is Finish.STOP else tokens)
        return GeneratedSample(
            request_id=sample.group.request.request_id,
            sample=sample.index,
            tokens=tokens,
            behaviour_logprobs=response.behaviour_logprobs.tolist(),
            engine_logprobs=response.engine_logprobs.tolist(),
            versions=response.versions.tolist(),
            finish=ended.finish,
            text=text,
            seconds=time.monotonic() - sample.started,
        )

    def _leave(self, rows: list[int]) -> None:
        for row in rows:
            self.cache.release(self.rows.pages(row))
        self.rows.leave(rows)
