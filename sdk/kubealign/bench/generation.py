"""How long a step's responses take, with so many workers. Pure."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kubealign.bench.engine_speed import EngineSpeed

#: Orders in which the lengths may come, of which the mean is taken; always the same ones.
_ORDERS = 4


@dataclass(frozen=True)
class Workload:
    """One step's responses. lengths: in tokens, one for each sample, in any order. samples: of one prompt,
    which go to one worker together. prompt_tokens: mean of a prompt, which is computed once."""

    lengths: Sequence[int]
    samples: int
    prompt_tokens: float = 0.0

    def __post_init__(self) -> None:
        if not self.lengths or len(self.lengths) % self.samples:
            raise ValueError(f"{len(self.lengths)} lengths in groups of {self.samples}")

    @property
    def groups(self) -> int:
        return len(self.lengths) // self.samples

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Drained:
    """seconds: from an idle start to the last token of the last response. unscored: from then to the last
    score."""

    seconds: float
    unscored: float


def generation(work: Workload, speed: EngineSpeed, most: int, scoring: float = 0.0) -> list[Drained]:
    """With 1, 2, ... `most` workers that share the prompts evenly. scoring: seconds that one scorer takes for
    all responses, each as it comes. What comes out badly for one more worker takes as long as without it."""
    found: list[Drained] = []
    for workers in range(1, most + 1):
        last = found[-1] if found else None
        made = _generated(work, speed, workers, scoring) if workers <= work.groups else last
        assert made is not None
        if last is not None and last.seconds + last.unscored < made.seconds + made.unscored:
            made = last
        found.append(made)
    return found


def _generated(work: Workload, speed: EngineSpeed, workers: int, scoring: float) -> Drained:
    every = []
    for order in range(_ORDERS):
        lengths = list(work.lengths)
        random.Random(order).shuffle(lengths)
        groups = [lengths[i : i + work.samples] for i in range(0, len(lengths), work.samples)]
        ended: list[tuple[float, int]] = []
        for share in (groups[worker::workers] for worker in range(workers)):
            prompts = speed.prompt_seconds(len(share) * work.prompt_tokens)
            one_workers = finished(speed, [length for group in share for length in group])
            ended += [(prompts + seconds, length) for seconds, length in one_workers]
        every.append(_scored(sorted(ended), scoring / work.tokens))
    return Drained(fmean(each.seconds for each in every), fmean(each.unscored for each in every))


def _scored(ended: Sequence[tuple[float, int]], seconds_a_token: float) -> Drained:
    """By one scorer, one response after another. ended: (seconds, length), in their order."""
    free = 0.0
    for seconds, length in ended:
        free = max(free, seconds) + length * seconds_a_token
    last = ended[-1][0]
    return Drained(last, free - last)


def finished(speed: EngineSpeed, lengths: Sequence[int]) -> list[tuple[float, int]]:
    """(seconds, length) of each response as one worker ends it, each begun in its turn as soon as there is
    room for it."""
    waiting = list(reversed(lengths))
    #: (the pass at which it ends, its length) of each that runs.
    running: list[tuple[int, int]] = []
    ended: list[tuple[float, int]] = []
    passes, seconds = 0, 0.0
    while waiting or running:
        while waiting and len(running) < speed.max_sequences:
            length = waiting.pop()
            heapq.heappush(running, (passes + length, length))
        until = running[0][0]
        seconds += (until - passes) * speed.pass_seconds(len(running))
        passes = until
        while running and running[0][0] == passes:
            ended.append((seconds, heapq.heappop(running)[1]))
    return ended


def flowing_seconds(work: Workload, speed: EngineSpeed, workers: int, staleness: int, most: float) -> float:
    """Of each step where workers always have more to do: as many groups as `staleness` allows are in the
    making. It takes as long as the tokens of a step at that concurrency, and no less than the longest
    response's share: it may come (staleness + 1) steps after it was begun. most: what it takes with pauses
    between the steps."""
    running = max(1, min(speed.max_sequences, (staleness + 1) * len(work.lengths) // workers))
    tokens = work.tokens / (workers * speed.tokens_per_second(running))
    prompts = speed.prompt_seconds(work.groups * work.prompt_tokens) / workers
    longest = max(work.lengths) * speed.pass_seconds(running) / (staleness + 1)
    return min(most, max(tokens + prompts, longest))
