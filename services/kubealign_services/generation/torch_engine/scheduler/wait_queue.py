"""The wait queue: groups whose samples have not all started, and preempted samples."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kubealign_services.generation.contract import GenerationRequest
from kubealign_services.generation.stop_strings import StopStrings
from kubealign_services.generation.torch_engine.kv_cache.page_pool import Pages
from kubealign_services.generation.torch_engine.scheduler.response_buffer import PartialResponse
from kubealign_services.training.expert_routing import Routing


@dataclass
class RequestGroup:
    """A queued or running request. arrival: its number among all requests. end_tokens: the token ids that end
    its responses.
    """

    request: GenerationRequest
    arrival: int
    end_tokens: frozenset[int]


@dataclass
class SampleState:
    """State of one sample of a group. started: time on the monotonic clock. stops: stop-string search over
    its text, where it has stop strings. routing: of a preempted sample, the recorded experts of its first
    tokens, with which its response was generated; recomputation may choose others.
    """

    group: RequestGroup
    index: int
    started: float
    stops: StopStrings | None = None
    routing: Routing | None = None

    @property
    def age_key(self) -> tuple[int, int]:
        """Sort key by age; smaller is older."""
        return self.group.arrival, self.index


@dataclass
class QueueEntry:
    """A text after which the samples `first` to `end` - 1 of a group draw their next token; earlier samples
    have started.

    The text is the prompt or, for a `preempted` sample, which is the only one, the prompt and its
    `response`. pages: of the whole text, once they are allocated; the first `computed_tokens` tokens are
    computed. logits [vocabulary]: after the text, where it is computed and samples still wait.
    """

    group: RequestGroup
    tokens: NDArray[np.int64]
    first: int
    end: int
    preempted: SampleState | None = None
    response: PartialResponse | None = None
    pages: Pages | None = None
    computed_tokens: int = 0
    logits: Tensor | None = None

    @property
    def remaining(self) -> int:
        """Number of samples that have not started."""
        return self.end - self.first

    @property
    def age_key(self) -> tuple[int, int]:
        """Age key of the sample that starts next."""
        return self.group.arrival, self.first


class WaitQueue:
    """Queue of entries, oldest request first, independent of the time of insertion."""

    def __init__(self) -> None:
        self._entries: list[QueueEntry] = []

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(self._entries)

    def insert(self, entry: QueueEntry) -> None:
        """Insert an entry by its age."""
        bisect.insort(self._entries, entry, key=lambda each: each.age_key)

    def remove(self, entries: list[QueueEntry]) -> None:
        """Remove these entries."""
        gone = {id(entry) for entry in entries}
        self._entries = [entry for entry in self._entries if id(entry) not in gone]

    def for_request(self, request_id: str) -> list[QueueEntry]:
        """Return the entries of a request."""
        return [entry for entry in self._entries if entry.group.request.request_id == request_id]

    def clear(self) -> None:
        self._entries.clear()

    def sample_count(self) -> int:
        """Return the number of waiting samples."""
        return sum(entry.remaining for entry in self._entries)

    def youngest_with_pages(self) -> QueueEntry | None:
        """Return the youngest entry that has pages, or None."""
        return next((entry for entry in reversed(self._entries) if entry.pages is not None), None)
