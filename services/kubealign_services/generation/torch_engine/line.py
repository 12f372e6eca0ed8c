"""Who waits: groups that have not entered whole, and samples that had to give their pages back."""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kubealign_services.generation.contract import GenerationRequest
from kubealign_services.generation.torch_engine.pages import Pages
from kubealign_services.generation.torch_engine.responses import Response
from kubealign_services.generation.torch_engine.stops import StopStrings


@dataclass
class Group:
    """A request on its way. arrival: its place among all requests. ends: the token ids that end its
    responses."""

    request: GenerationRequest
    arrival: int
    ends: frozenset[int]


@dataclass
class Sample:
    """One sample of a group in the making. started: on the monotonic clock. stops: what follows its text,
    where it has stop strings."""

    group: Group
    index: int
    started: float
    stops: StopStrings | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Its age: the smaller, the older."""
        return self.group.arrival, self.index


@dataclass
class Entry:
    """A text after which the samples `first` to `end` - 1 of a group draw their next token; those before have
    entered. It is the prompt; or of a `paused` sample, which is the only one, the prompt and its `response`.

    pages: of the whole text, once there is room for it; the first `done` tokens are computed. logits
    [vocabulary]: after the text, where it is computed and samples wait.
    """

    group: Group
    tokens: NDArray[np.int64]
    first: int
    end: int
    paused: Sample | None = None
    response: Response | None = None
    pages: Pages | None = None
    done: int = 0
    logits: Tensor | None = None

    @property
    def remaining(self) -> int:
        """Samples that have not entered."""
        return self.end - self.first

    @property
    def order(self) -> tuple[int, int]:
        """The age of the sample that enters next."""
        return self.group.arrival, self.first


class WaitingLine:
    """The oldest first, whenever they came into the line."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def insert(self, entry: Entry) -> None:
        """At the place of its age."""
        bisect.insort(self._entries, entry, key=lambda each: each.order)

    def drop(self, entries: list[Entry]) -> None:
        """They wait no more."""
        gone = {id(entry) for entry in entries}
        self._entries = [entry for entry in self._entries if id(entry) not in gone]

    def of(self, request_id: str) -> list[Entry]:
        """What waits of a request."""
        return [entry for entry in self._entries if entry.group.request.request_id == request_id]

    def clear(self) -> None:
        self._entries.clear()

    def samples(self) -> int:
        """How many samples wait."""
        return sum(entry.remaining for entry in self._entries)

    def youngest_with_pages(self) -> Entry | None:
        """Of those that hold pages."""
        return next((entry for entry in reversed(self._entries) if entry.pages is not None), None)
