"""A sample is the same whatever ran beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters

SAMPLINGS = st.builds(
    lambda max_tokens, low, temperature, top_k, top_p, stop, ids: SamplingParameters(
        max_tokens, min(low, max_tokens), temperature, top_k, top_p, stop, ids
    ),
    st.integers(1, 12),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from([1.0, 1.0, 0.6]),
    st.sampled_from([(), (), ("<",), ("6", "é")]),
    st.sampled_from([(), tuple(range(0, 256, 8))]),
)


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParameters


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 10),
        st.lists(st.integers(0, 269), min_size=1, max_size=9).map(tuple),
        st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5).map(tuple),
        SAMPLINGS,
    ),
    min_size=1,
    max_size=7,
)


def facts(sample: GeneratedSample) -> tuple[Any, ...]:
    return sample.tokens, sample.finish, sample.text, sample.versions


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-some-windows"])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(arrivals=ARRIVALS, max_sequences=st.integers(1, 9), prefill_tokens=st.integers(1, 24))
def test_any_order_any_company(
    name: str,
    arrivals: list[Arrival],
    max_sequences: int,
    prefill_tokens: int,
    zoo: Any,
    run_all: Callable[..., Any],
) -> None:
    """Groups arrive while others run, in engines of many sizes; each sample equals the one made alone, and
    each prompt was computed once."""
    engine = zoo.engine(name, max_sequences, prefill_tokens)
    together: dict[tuple[str, int], GeneratedSample] = {}
    for now in range(11):
        for i, arrival in enumerate(arrivals):
            if arrival.step == now:
                engine.add(GenerationRequest(str(i), arrival.prompt, arrival.seeds, arrival.sampling))
        for sample in engine.step():
            together[sample.request_id, sample.sample] = sample
        assert engine.load().running <= max_sequences
    together |= run_all(engine)
    load = engine.load()
    assert load.prefilled_tokens == sum(len(arrival.prompt) for arrival in arrivals)
    assert load.generated_tokens == sum(len(sample.tokens) for sample in together.values())
    assert load.free_sequences == max_sequences
    alone = zoo.engine(name, 1)
    for i, arrival in enumerate(arrivals):
        for j, seed in enumerate(arrival.seeds):
            request = GenerationRequest(f"{i}.{j}", arrival.prompt, (seed,), arrival.sampling)
            expected, got = run_all(alone, request)[f"{i}.{j}", 0], together.pop((str(i), j))
            assert facts(got) == facts(expected)
            assert got.behaviour_logprobs == pytest.approx(expected.behaviour_logprobs, abs=1e-4)
            assert got.engine_logprobs == pytest.approx(expected.engine_logprobs, abs=1e-4)
    assert not together


def test_seeds_make_samples(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa")
    samples = run_all(engine, GenerationRequest("r", (1, 2, 3), (11, 12, 11), SamplingParameters(10)))
    assert samples["r", 0].tokens == samples["r", 2].tokens != samples["r", 1].tokens


def test_a_groups_prompt_is_computed_once(zoo: Any, run_all: Callable[..., Any]) -> None:
    """Also where the group enters in parts: ten samples through four slots."""
    engine = zoo.engine("llama-gqa", max_sequences=4)
    prompt = tuple(range(40, 57))
    samples = run_all(engine, GenerationRequest("r", prompt, tuple(range(10)), SamplingParameters(5)))
    assert len(samples) == 10
    assert engine.load().prefilled_tokens == 17


def test_several_prompts_are_one_forward_pass(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three prompts enter at one step by one pass over 3 + 5 + 3 tokens; the next step is one pass over the
    three new tokens."""
    engine = zoo.engine("llama-gqa")
    passes: list[int] = []
    plain = engine._passes.model.forward

    def counted(tokens: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        passes.append(len(tokens))
        logits: torch.Tensor = plain(tokens, *rest, **named)
        return logits

    monkeypatch.setattr(engine._passes.model, "forward", counted)
    for i, length in enumerate((3, 5, 3)):
        engine.add(GenerationRequest(str(i), tuple(range(length)), (i,), SamplingParameters(4, min_tokens=4)))
    engine.step()
    engine.step()
    assert passes == [11, 3]


def test_memory_stays_what_the_running_sequences_need(zoo: Any, run_all: Callable[..., Any]) -> None:
    """Forty groups through an engine of four: four slots, of the 64 positions that 6 + 10 tokens are rounded
    up to."""
    engine = zoo.engine("llama-gqa", max_sequences=4)
    sampling = SamplingParameters(10)
    run_all(
        engine, *(GenerationRequest(str(i), (1, 2, 3, 4, 5, 6), (i, 100 + i), sampling) for i in range(40))
    )
    assert (engine._passes._cache.slots, engine._passes._cache.positions) == (4, 64)


def test_frequencies_of_the_first_token(zoo: Any, run_all: Callable[..., Any]) -> None:
    """4,000 seeds, top-k 5: chi-square against the reference's own distribution, four degrees of freedom, is
    below 18.47 in 999 cases of 1,000."""
    engine, reference = zoo.engine("llama-gqa", max_sequences=1000), zoo.reference("llama-gqa")
    samples = run_all(
        engine, GenerationRequest("r", (3, 1, 4), tuple(range(4000)), SamplingParameters(1, top_k=5))
    )
    counts = torch.bincount(
        torch.tensor([sample.tokens[0] for sample in samples.values()]), minlength=276
    ).double()
    with torch.no_grad():
        values, likeliest = reference(torch.tensor([[3, 1, 4]])).logits[0, -1].double().topk(5)
    expected = torch.softmax(values, -1) * 4000
    assert counts.sum() == counts[likeliest].sum()
    assert ((counts[likeliest] - expected) ** 2 / expected).sum() < 18.47
