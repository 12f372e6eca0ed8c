"""Simulated generation time of a step by the number of rollout workers. Pure."""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kubealign.bench.engine_speed import EngineSpeed

#: Number of fixed random orders of the lengths over which the time is averaged.
_ORDERS = 4


@dataclass(frozen=True)
class StepWorkload:
    """Responses of one step.

    lengths: in tokens, one per sample, in any order. samples: per prompt; a prompt's samples go to one
    worker together.
    prompt_tokens: mean length of a prompt, which is computed once.
    """

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
class GenerationTime:
    """Generation time of a step that starts with idle workers.

    seconds: until the last token of the last response. scoring_tail: from then to the last score.
    """

    seconds: float
    scoring_tail: float


def generation_times(
    work: StepWorkload, speed: EngineSpeed, most: int, scoring: float = 0.0
) -> list[GenerationTime]:
    """Simulate generation with 1, 2, ... `most` workers that share the prompts evenly.

    A worker count that performs worse than one fewer gets the time of the latter.

    Args:
        scoring: Seconds that one scorer takes for all responses, in order of completion.
    """
    times: list[GenerationTime] = []
    for workers in range(1, most + 1):
        last = times[-1] if times else None
        time = _simulate_generation(work, speed, workers, scoring) if workers <= work.groups else last
        assert time is not None
        if last is not None and last.seconds + last.scoring_tail < time.seconds + time.scoring_tail:
            time = last
        times.append(time)
    return times


def _simulate_generation(
    work: StepWorkload, speed: EngineSpeed, workers: int, scoring: float
) -> GenerationTime:
    results = []
    for order in range(_ORDERS):
        lengths = list(work.lengths)
        random.Random(order).shuffle(lengths)
        groups = [lengths[i : i + work.samples] for i in range(0, len(lengths), work.samples)]
        completions: list[tuple[float, int]] = []
        for share in (groups[worker::workers] for worker in range(workers)):
            prompts = speed.prompt_seconds(len(share) * work.prompt_tokens)
            one_workers = simulate_worker(speed, [length for group in share for length in group])
            completions += [(prompts + seconds, length) for seconds, length in one_workers]
        results.append(_add_scoring(sorted(completions), scoring / work.tokens))
    return GenerationTime(
        fmean(each.seconds for each in results), fmean(each.scoring_tail for each in results)
    )


def _add_scoring(completions: Sequence[tuple[float, int]], seconds_a_token: float) -> GenerationTime:
    """Add the scoring time of one scorer that handles one response after another.

    Args:
        ended: (seconds, length), ascending.
    """
    scorer_free_at = 0.0
    for seconds, length in completions:
        scorer_free_at = max(scorer_free_at, seconds) + length * seconds_a_token
    last = completions[-1][0]
    return GenerationTime(last, scorer_free_at - last)


def simulate_worker(speed: EngineSpeed, lengths: Sequence[int]) -> list[tuple[float, int]]:
    """Return (seconds, length) of each response of one worker, each started as soon as a slot is free."""
    waiting = list(reversed(lengths))
    #: (pass at which it ends, length) of each running response.
    running: list[tuple[int, int]] = []
    completions: list[tuple[float, int]] = []
    passes, seconds = 0, 0.0
    while waiting or running:
        while waiting and len(running) < speed.max_sequences:
            length = waiting.pop()
            heapq.heappush(running, (passes + length, length))
        until = running[0][0]
        seconds += (until - passes) * speed.seconds_per_pass(len(running))
        passes = until
        while running and running[0][0] == passes:
            completions.append((seconds, heapq.heappop(running)[1]))
    return completions


def steady_state_seconds(
    work: StepWorkload, speed: EngineSpeed, workers: int, staleness: int, most: float
) -> float:
    """Return the seconds per step of workers that always have requests.

    As many groups as `staleness` allows are in flight. A step takes the time of its tokens at that
    concurrency, and at least the longest response's share: it may finish (staleness + 1) steps after its
    start.

    Args:
        most: Upper bound: seconds per step with pauses between the steps.
    """
    running = max(1, min(speed.max_sequences, (staleness + 1) * len(work.lengths) // workers))
    tokens = work.tokens / (workers * speed.tokens_per_second(running))
    prompts = speed.prompt_seconds(work.groups * work.prompt_tokens) / workers
    longest = max(work.lengths) * speed.seconds_per_pass(running) / (staleness + 1)
    return min(most, max(tokens + prompts, longest))
