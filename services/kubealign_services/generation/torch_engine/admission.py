"""Who comes next: groups wait in line, first come, first served, and enter as slots become free."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from kubealign_services.generation.contract import GenerationRequest


@dataclass
class Group:
    """A request on its way. ends: the token ids that end its responses. unfinished: how many samples have not
    ended, admitted: how many have entered. held: where some samples have entered and others still wait, the
    logits [vocabulary] after its prompt, which the cache holds."""

    request: GenerationRequest
    ends: frozenset[int]
    unfinished: int
    admitted: int = 0
    held: Tensor | None = None

    @property
    def remaining(self) -> int:
        return len(self.request.seeds) - self.admitted

    @property
    def positions(self) -> int:
        """Cache positions that each sample may need."""
        return len(self.request.prompt_tokens) + self.request.sampling.max_tokens


@dataclass(frozen=True)
class Admission:
    """Samples `first` to `first + count - 1` of a group enter now."""

    group: Group
    first: int
    count: int


@dataclass
class WaitingLine:
    """Only the first in line can have entered in part, so at most one prompt is held."""

    _groups: deque[Group] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def append(self, group: Group) -> None:
        self._groups.append(group)

    def remove(self, request_id: str) -> None:
        """Forget a group that waits, if there is one of that id."""
        self._groups = deque(group for group in self._groups if group.request.request_id != request_id)

    def clear(self) -> None:
        self._groups.clear()

    def samples(self) -> int:
        """How many samples wait."""
        return sum(group.remaining for group in self._groups)

    def admit(self, free: int, prefill_tokens: int) -> list[Admission]:
        """Take as many samples as there are `free` slots from the front, until their prompts exceed
        `prefill_tokens` together. A longer prompt enters alone. A group that does not fit enters in part, and
        the rest stays first in line."""
        admissions: list[Admission] = []
        spent = 0
        while free and self._groups:
            group = self._groups[0]
            tokens = 0 if group.held is not None else len(group.request.prompt_tokens)
            if spent and spent + tokens > prefill_tokens:
                break
            count = min(free, group.remaining)
            admissions.append(Admission(group, group.admitted, count))
            group.admitted += count
            free -= count
            spent += tokens
            if not group.remaining:
                self._groups.popleft()
        return admissions
