"""How long an engine's passes take, by the number of sequences that run."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kubealign_services.calibration.budget import Budget
from kubealign_services.generation.contract import GenerationRequest, RolloutEngine, SamplingParameters

#: Passes of one measurement, after one that warms up.
_FEWEST, _MOST = 2, 12


@dataclass(frozen=True)
class Decoding:
    """passes: (sequences running, seconds of a pass), ascending. prompt_tokens_per_second: of prompts."""

    passes: list[tuple[int, float]]
    prompt_tokens_per_second: float


def measure_decoding(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParameters,
    most: int,
    budget: Budget,
) -> Decoding:
    """The fewest and the most sequences at least, and what lies between while the budget lasts; `prompts`
    are taken in turn. sampling: its max_tokens are at least as many as passes are made."""
    found: dict[int, float] = {}
    rates = []
    for running in in_between(most):
        if len(found) >= 2 and budget.left <= 0:
            break
        found[running], rate = _at(engine, prompts, sampling, running, budget)
        rates.append(rate)
    return Decoding(sorted(found.items()), max(rates))


def in_between(most: int) -> list[int]:
    """1, `most`, and the powers of two between them, those in the middle first."""
    powers = [2**k for k in range(1, most.bit_length()) if 2**k < most]
    middle = len(powers) / 2
    return list(dict.fromkeys([1, most, *sorted(powers, key=lambda n: abs(powers.index(n) + 0.5 - middle))]))


def _at(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParameters,
    running: int,
    budget: Budget,
) -> tuple[float, float]:
    """(seconds of a pass, prompt tokens a second)."""
    names = [f"calibration-{running}-{number}" for number in range(running)]
    for number, name in enumerate(names):
        prompt = tuple(prompts[number % len(prompts)])
        engine.add(GenerationRequest(name, prompt, (number,), sampling))
    filled = engine.load().prefilled_tokens + engine.load().reused_tokens
    begun = time.perf_counter()
    # Prompts that do not fit one pass enter in several.
    while _step(engine)[0] < running:
        pass
    load = engine.load()
    prompt_tokens = load.prefilled_tokens + load.reused_tokens - filled
    rate = prompt_tokens / (time.perf_counter() - begun)
    seconds = [_step(engine)[1] for _ in range(1 + _FEWEST)][1:]
    while len(seconds) < _MOST and budget.left > max(seconds):
        seconds.append(_step(engine)[1])
    for name in names:
        engine.abort(name)
    # What else the machine does can only add to it.
    return min(seconds), rate


def _step(engine: RolloutEngine) -> tuple[int, float]:
    """(tokens made, seconds)."""
    before, begun = engine.load().generated_tokens, time.perf_counter()
    engine.step()
    seconds = time.perf_counter() - begun
    return engine.load().generated_tokens - before, seconds


def room_for_passes(running: int, longest_prompt: int, prefill_tokens: int) -> int:
    """Tokens that no sequence may end before: those of the passes that are measured, and of those in which
    the others' prompts enter. Each takes a prompt at least, or half of what a pass may take."""
    a_pass = max(1, prefill_tokens // 2 // longest_prompt)
    return 1 + _MOST + 1 + math.ceil(running / a_pass)
