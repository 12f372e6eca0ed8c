"""Scheduler: decides for each pass which sequences run, start or give back their pages.

Computes no tensor.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.contract import FinishReason, GeneratedSample, GenerationRequest
from kubealign_services.generation.stop_strings import StopStrings
from kubealign_services.generation.torch_engine.kv_cache.page_manager import PageManager
from kubealign_services.generation.torch_engine.kv_cache.routing_pages import RoutingPages
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch
from kubealign_services.generation.torch_engine.scheduler.admission import PrefillChunk, admit
from kubealign_services.generation.torch_engine.scheduler.running_batch import (
    Decode,
    FinishedRow,
    RunningBatch,
)
from kubealign_services.generation.torch_engine.scheduler.wait_queue import (
    QueueEntry,
    RequestGroup,
    SampleState,
    WaitQueue,
)
from kubealign_services.training.expert_routing import Routing


@dataclass(frozen=True)
class ScheduledStep:
    """One pass, and the use of its logits.

    batch: None where nothing is to be computed. The first `running` logits belong to the running rows;
    then, in row order, those of `entries` follow: (entry, number of rows that draw from the logits after
    its text, True where these are computed in this pass; otherwise the entry has them). sources, targets:
    pages to copy after the pass.
    """

    batch: RaggedBatch | None
    running: int
    entries: list[tuple[QueueEntry, int, bool]]
    sources: list[int]
    targets: list[int]


class Scheduler:
    """The samples of all requests, from the wait queue over the running rows to their end. rows, queue and
    cache are public for reading.
    """

    def __init__(
        self,
        rows: RunningBatch,
        cache: PageManager,
        max_sequences: int,
        prefill_tokens: int,
        routing: RoutingPages | None = None,
    ) -> None:
        """Create a scheduler without requests.

        Args:
            routing: Recorded experts of the tokens in the pages; None: none are recorded.
        """
        self.rows = rows
        self.cache = cache
        self.queue = WaitQueue()
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.preemptions = 0
        self._max_sequences = max_sequences
        self._prefill_tokens = prefill_tokens
        self._arrivals = 0
        self._routing = routing

    def __bool__(self) -> bool:
        """Return True while any sample runs or waits."""
        return bool(len(self.rows) or self.queue.sample_count())

    @property
    def running(self) -> int:
        """Number of samples that have started and not ended."""
        paused = sum(entry.preempted is not None for entry in self.queue)
        return len(self.rows) + paused

    def add(self, request: GenerationRequest, end_tokens: frozenset[int]) -> None:
        """Queue a request.

        Args:
            end_tokens: Token ids that end its responses.
        """
        group = RequestGroup(request, self._arrivals, end_tokens)
        self._arrivals += 1
        tokens = np.array(request.prompt_tokens, np.int64)
        self.queue.insert(QueueEntry(group, tokens, 0, len(request.seeds)))

    def abort(self, request_id: str) -> None:
        """Drop all samples of a request."""
        waiting = self.queue.for_request(request_id)
        for entry in waiting:
            self._release_entry(entry)
        self.queue.remove(waiting)
        samples = enumerate(self.rows.samples)
        self._remove_rows([row for row, each in samples if each.group.request.request_id == request_id])

    def clear(self) -> None:
        """Drop all samples."""
        self.preempt_all()
        self.queue.clear()

    def next_step(self, decode: Decode) -> ScheduledStep:
        """Return the next pass, which must be executed; where it fails, call `preempt_all`.

        Args:
            decode: Maps tokens to text.
        """
        self._allocate_pages()
        running = len(self.rows)
        free = self._max_sequences - running
        waiting = {id(entry) for entry in self.queue if entry.pages is None}
        chunks = admit(self.queue, self.cache, running, free, self._prefill_tokens)
        for chunk in chunks:
            self.prefilled_tokens += chunk.end - chunk.start
            self.reused_tokens += chunk.start if id(chunk.entry) in waiting else 0
        batch = _build_batch(self.rows, chunks)
        complete = [chunk for chunk in chunks if chunk.end == len(chunk.entry.tokens)]
        entries = [(chunk.entry, chunk.starting, chunk.end > chunk.start) for chunk in complete]
        copies = [(chunk.last_page, chunk.own_last_pages) for chunk in complete if len(chunk.own_last_pages)]
        for chunk in complete:
            self._start_samples(chunk, decode)
        self.queue.remove([chunk.entry for chunk in complete if not chunk.entry.remaining])
        return ScheduledStep(
            batch,
            running,
            entries,
            sources=[source for source, own in copies for _ in own],
            targets=[target for _, own in copies for target in own.tolist()],
        )

    def record_tokens(
        self,
        tokens: NDArray[np.int64],
        behaviour_logprobs: NDArray[np.float32],
        engine_logprobs: NDArray[np.float32],
        version: int,
        decode: Decode,
    ) -> list[GeneratedSample]:
        """Record the sampled tokens of the rows; all arrays are [rows]. Return the samples that ended."""
        ended = self.rows.append(tokens, behaviour_logprobs, engine_logprobs, version)
        samples = [self._finish(each, decode) for each in ended]
        self._remove_rows([each.row for each in ended])
        return samples

    def preempt_all(self) -> None:
        """Preempt all running samples: they release their pages and are recomputed with the tokens generated
        so far.
        """
        for row in range(len(self.rows)):
            self._preempt(row)
        self._remove_rows([*range(len(self.rows))])
        self.invalidate_cache()

    def invalidate_cache(self) -> None:
        """Invalidate the cache after a weight change: running samples keep their pages, which no other sample
        may share.
        """
        for entry in self.queue:
            self._release_entry(entry)
        self.cache.flush()

    def _allocate_pages(self) -> None:
        """Allocate a page for each running row that needs one; where too few are available, preempt the
        youngest samples.
        """
        while len(rows := self.rows.rows_without_page()) > self.cache.available:
            row = self.rows.youngest()
            entry = self.queue.youngest_with_pages()
            if entry is not None and entry.age_key > self.rows.samples[row].age_key:
                self._release_entry(entry)
            else:
                self._preempt(row)
                self._register_prefix(row, self.rows.token_count(row))
                self._remove_rows([row])
            self.preemptions += 1
        self.rows.append_pages(rows, self.cache.allocate(len(rows)))

    def _start_samples(self, chunk: PrefillChunk, decode: Decode) -> None:
        """Start the chunk's samples in the next rows."""
        entry = chunk.entry
        assert entry.pages is not None
        length = len(entry.tokens)
        own = iter(chunk.own_last_pages)
        for number in range(chunk.starting):
            pages = entry.pages
            if not (chunk.gives_last_page and number == chunk.starting - 1):
                full = pages[: length // PAGE_TOKENS]
                self.cache.share(full)
                pages = np.concatenate((full, [next(own)])) if len(full) < len(pages) else full
            sample = entry.preempted or self._new_sample(entry.group, entry.first + number, decode)
            self.rows.add(sample, entry.response, pages, length, self.cache.epoch)
        entry.first += chunk.starting
        if chunk.gives_last_page:
            entry.pages, entry.computed_tokens = None, 0

    def _new_sample(self, group: RequestGroup, index: int, decode: Decode) -> SampleState:
        stop = group.request.sampling.stop
        return SampleState(group, index, time.monotonic(), StopStrings(decode, stop) if stop else None)

    def _preempt(self, row: int) -> None:
        """Queue the row's sample again; the caller removes the row."""
        sample = self.rows.samples[row]
        count = self.rows.token_count(row)
        response = self.rows.responses.copy_response(row, count)
        # A pass that failed may not have computed the prompt of a sample without tokens.
        if count:
            sample.routing = self._recorded_routing(row, count)
        tokens = np.concatenate((sample.group.request.prompt_tokens, response.tokens)).astype(np.int64)
        self.queue.insert(QueueEntry(sample.group, tokens, sample.index, sample.index + 1, sample, response))

    def _release_entry(self, entry: QueueEntry) -> None:
        """Release the entry's pages; its text will be recomputed."""
        if entry.pages is not None:
            self.cache.release(entry.pages)
        entry.pages, entry.computed_tokens, entry.logits = None, 0, None

    def _register_prefix(self, row: int, count: int) -> None:
        """Register the pages of the row's prompt and first `count` tokens, for later requests with the same
        prefix.
        """
        if self.rows.epoch(row) == self.cache.epoch:
            # The newest token has no cached keys and values yet.
            response = self.rows.responses.tokens(row, count)[:-1]
            prompt = self.rows.samples[row].group.request.prompt_tokens
            text = np.concatenate((prompt, response)).astype(np.int64)
            self.cache.register(text, self.rows.pages(row))

    def _finish(self, ended: FinishedRow, decode: Decode) -> GeneratedSample:
        row, count = ended.row, ended.token_count
        self._register_prefix(row, count)
        sample = self.rows.samples[row]
        response = self.rows.responses.copy_response(row, count)
        tokens = response.tokens.tolist()
        text = ended.text
        if text is None:
            # The end token is not part of the text.
            text = decode(tokens[:-1] if ended.finish is FinishReason.STOP else tokens)
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
            routing=self._recorded_routing(row, count),
        )

    def _recorded_routing(self, row: int, count: int) -> Routing | None:
        """Return the recorded experts of the row's prompt and its first `count` tokens but the last."""
        if self._routing is None:
            return None
        sample = self.rows.samples[row]
        stop = len(sample.group.request.prompt_tokens) + count - 1
        earlier = sample.routing
        if earlier is None:
            return self._routing.gather(self.rows.pages(row), 0, stop)
        later = self._routing.gather(self.rows.pages(row), len(earlier), stop)
        routing: Routing = np.concatenate((earlier[:stop], later))
        return routing

    def _remove_rows(self, rows: list[int]) -> None:
        for row in rows:
            self.cache.release(self.rows.pages(row))
        self.rows.remove(rows)


def _build_batch(rows: RunningBatch, chunks: list[PrefillChunk]) -> RaggedBatch | None:
    """Build the batch of a pass, or None where nothing is to be computed.

    Logits are requested after each running row, then after each text that this pass completes.
    """
    chunks = [chunk for chunk in chunks if chunk.end > chunk.start]
    running = len(rows)
    tokens, positions, tables = rows.newest_tokens()
    ones = np.ones(running, np.int64)
    row_indices = np.arange(running)
    if not chunks:
        return RaggedBatch(tokens, positions, ones, running, tables, row_indices) if running else None
    lengths = np.array([chunk.end - chunk.start for chunk in chunks], np.int64)
    is_complete = np.array([chunk.end == len(chunk.entry.tokens) for chunk in chunks])
    ends = running + lengths.cumsum() - 1
    return RaggedBatch(
        tokens=np.concatenate((tokens, *(chunk.entry.tokens[chunk.start : chunk.end] for chunk in chunks))),
        positions=np.concatenate((positions, *(np.arange(chunk.start, chunk.end) for chunk in chunks))),
        lengths=np.concatenate((ones, lengths)),
        decoding_count=running,
        page_tables=_stack_page_tables(tables, chunks),
        logit_indices=np.concatenate((row_indices, ends[is_complete])),
    )


def _stack_page_tables(
    running: np.ndarray[tuple[int, ...], np.dtype[np.int32]], chunks: list[PrefillChunk]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Append the chunks' page tables to those of the running rows."""
    pages = [chunk.entry.pages for chunk in chunks]
    most = max(running.shape[1], *(0 if each is None else len(each) for each in pages))
    tables = np.zeros((len(running) + len(chunks), most), np.int32)
    tables[: len(running), : running.shape[1]] = running
    for row, each in enumerate(pages, len(running)):
        if each is not None:
            tables[row, : len(each)] = each
    return tables
