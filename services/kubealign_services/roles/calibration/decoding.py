"""Measures an engine's passes by the number of running sequences."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kubealign_services.generation.contract import GenerationRequest, RolloutEngine, SamplingParameters
from kubealign_services.roles.calibration.time_budget import TimeBudget

#: Smallest and largest number of passes of one measurement, after a warm-up pass.
_MIN_PASSES, _MAX_PASSES = 2, 12


@dataclass(frozen=True)
class DecodingTiming:
    """Time of an engine's passes.

    passes: (running sequences, seconds of a pass), ascending. prompt_tokens_per_second: prefill rate.
    """

    passes: list[tuple[int, float]]
    prompt_tokens_per_second: float


def measure_decoding(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParameters,
    max_running: int,
    budget: TimeBudget,
) -> DecodingTiming:
    """Measure the smallest and the largest number of sequences, and numbers between while the budget lasts.

    Args:
        prompts: Used in turn.
        sampling: Its max_tokens must be at least the number of passes.
    """
    seconds_by_running: dict[int, float] = {}
    rates = []
    for running in batch_sizes(max_running):
        if len(seconds_by_running) >= 2 and budget.seconds_left <= 0:
            break
        seconds_by_running[running], rate = _measure_batch_size(engine, prompts, sampling, running, budget)
        rates.append(rate)
    return DecodingTiming(sorted(seconds_by_running.items()), max(rates))


def batch_sizes(max_running: int) -> list[int]:
    """Return 1, `max_running`, and the powers of two between them, the middle ones first."""
    powers = [2**k for k in range(1, max_running.bit_length()) if 2**k < max_running]
    middle = len(powers) / 2
    return list(
        dict.fromkeys([1, max_running, *sorted(powers, key=lambda n: abs(powers.index(n) + 0.5 - middle))])
    )


def _measure_batch_size(
    engine: RolloutEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParameters,
    running: int,
    budget: TimeBudget,
) -> tuple[float, float]:
    """Return (seconds of a pass, prompt tokens per second)."""
    names = [f"calibration-{running}-{number}" for number in range(running)]
    for number, name in enumerate(names):
        prompt = tuple(prompts[number % len(prompts)])
        engine.add(GenerationRequest(name, prompt, (number,), sampling))
    tokens_before = engine.load().prefilled_tokens + engine.load().reused_tokens
    started = time.perf_counter()
    # Prompts that do not fit into one pass are prefilled in several.
    while _timed_step(engine)[0] < running:
        pass
    load = engine.load()
    prompt_tokens = load.prefilled_tokens + load.reused_tokens - tokens_before
    rate = prompt_tokens / (time.perf_counter() - started)
    seconds = [_timed_step(engine)[1] for _ in range(1 + _MIN_PASSES)][1:]
    while len(seconds) < _MAX_PASSES and budget.seconds_left > max(seconds):
        seconds.append(_timed_step(engine)[1])
    for name in names:
        engine.abort(name)
    # Other load on the machine can only increase the time.
    return min(seconds), rate


def _timed_step(engine: RolloutEngine) -> tuple[int, float]:
    """Return (generated tokens, seconds)."""
    before, started = engine.load().generated_tokens, time.perf_counter()
    engine.step()
    seconds = time.perf_counter() - started
    return engine.load().generated_tokens - before, seconds


def min_response_tokens(running: int, longest_prompt: int, prefill_tokens: int) -> int:
    """Return the number of tokens before which no sequence may end: those of the measured passes, and of the
    passes that prefill the other prompts.

    Each prefill pass processes at least one prompt, or half of its token limit.
    """
    a_pass = max(1, prefill_tokens // 2 // longest_prompt)
    return 1 + _MAX_PASSES + 1 + math.ceil(running / a_pass)
