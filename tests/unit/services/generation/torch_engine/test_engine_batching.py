"""Samples are independent of the batch: its order, other requests, cache size and interruptions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.kv_cache.page_manager import pages_for

Samples = dict[tuple[str, int], GeneratedSample]

SAMPLINGS = st.builds(
    lambda max_tokens, low, temperature, top_k, top_p, stop, ids: SamplingParameters(
        max_tokens, min(low, max_tokens), temperature, top_k, top_p, stop, ids
    ),
    st.integers(1, 12) | st.integers(16, 34),
    st.sampled_from([0, 0, 3, 34]),
    st.sampled_from([0.0, 0.7, 1.0, 1.5]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from([1.0, 1.0, 0.6]),
    st.sampled_from([(), (), ("<",), ("6", "é")]),
    st.sampled_from([(), tuple(range(0, 256, 8))]),
)
# Shared prefixes of zero to three pages, and the tokens after them.
PROMPTS = st.builds(
    lambda stem, length, tail: tuple((stem * 50 + i * i) % 270 for i in range(length)) + tuple(tail),
    st.integers(1, 2),
    st.sampled_from([0, 5, 16, 37, 48]),
    st.lists(st.integers(0, 269), min_size=1, max_size=9),
)


@dataclass(frozen=True)
class Arrival:
    """A group's arrival. aborted: the step at which it is aborted, if any."""

    step: int
    prompt: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParameters
    aborted: int | None


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 10),
        PROMPTS,
        st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5).map(tuple),
        SAMPLINGS,
        st.sampled_from([None, None, None, 4, 11]),
    ),
    min_size=1,
    max_size=6,
)
REFITS = st.dictionaries(st.integers(1, 20), st.sampled_from([*InFlightPolicy]), max_size=3)


def facts(sample: GeneratedSample) -> tuple[Any, ...]:
    return sample.tokens, sample.finish, sample.text, sample.versions


def weights(zoo: Any, name: str, version: int) -> list[tuple[str, torch.Tensor]]:
    """Return the weights of later versions: the reference's, each larger by a tenth."""
    scale = 0.9 + 0.1 * version
    return [(key, weight.detach() * scale) for key, weight in zoo.reference(name).named_parameters()]


def pages_needed(arrivals: list[Arrival]) -> int:
    """Return the smallest cache that each request fits into alone."""
    return max(pages_for(len(each.prompt) + each.sampling.max_tokens - 1) for each in arrivals)


def check_pages(engine: TorchRolloutEngine) -> None:
    """Check that pages in use stay within the limit."""
    cache = engine._scheduler.cache
    assert cache.used <= cache.limit and engine._runner.pages <= cache.limit
    assert engine.load().cache_used == cache.used / cache.limit


def check_idle(engine: TorchRolloutEngine) -> None:
    """Check that every page was released: unused pages are free after a flush."""
    cache = engine._scheduler.cache
    assert cache.used == 0
    cache.flush()
    assert cache._pool.free == cache.storage_pages
    assert not cache._pool._reference_counts.any()


def generate_alone(
    engine: TorchRolloutEngine, request: GenerationRequest, versions: list[int], weights: Callable[[int], Any]
) -> GeneratedSample:
    """Return the sample of an otherwise idle engine, which is refitted where the versions change."""
    engine.refit(weights(versions[0]), versions[0])
    engine.add(request)
    for generated in range(1, 100):
        for sample in engine.step():
            return sample
        if generated < len(versions) and versions[generated] != versions[generated - 1]:
            engine.refit(weights(versions[generated]), versions[generated], InFlightPolicy.INTERRUPT)
    raise AssertionError("it does not end")


def plain_logprobs(zoo: Any, name: str, arrival: Arrival, sample: GeneratedSample) -> list[float]:
    """Return transformers' log-probabilities, with the weight version of each token."""
    temperature = arrival.sampling.temperature or 1.0
    ids = torch.tensor([[*arrival.prompt, *sample.tokens]])
    model = zoo.reference(name)
    own = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    result = [0.0] * len(sample.tokens)
    for version in set(sample.versions):
        with torch.no_grad():
            for key, weight in weights(zoo, name, version):
                model.get_parameter(key).copy_(weight)
            logits = model(ids[:, :-1]).logits[0, len(arrival.prompt) - 1 :] / temperature
            logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
            for key, weight in own.items():
                model.get_parameter(key).copy_(weight)
        for index, token_version in enumerate(sample.versions):
            if token_version == version:
                result[index] = float(logprobs[index])
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-some-windows"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    arrivals=ARRIVALS,
    refits=REFITS,
    max_sequences=st.integers(1, 9),
    prefill_tokens=st.integers(1, 60),
    spare_pages=st.sampled_from([0, 0, 1, 3, 8, 100]),
)
def test_samples_are_independent_of_the_batch(
    name: str,
    arrivals: list[Arrival],
    refits: dict[int, InFlightPolicy],
    max_sequences: int,
    prefill_tokens: int,
    spare_pages: int,
    zoo: Any,
    run_all: Callable[..., Any],
) -> None:
    """Groups arrive and are aborted while others run, in engines of many sizes, which are refitted; each
    sample equals the one generated alone, with its recorded weight versions.
    """
    engine = zoo.engine(name, max_sequences, prefill_tokens, pages_needed(arrivals) + spare_pages)
    together: Samples = {}
    version, continued = 1, False
    for now in range(21):
        for i, arrival in enumerate(arrivals):
            if arrival.step == now:
                engine.add(GenerationRequest(str(i), arrival.prompt, arrival.seeds, arrival.sampling))
            if arrival.aborted == now:
                engine.abort(str(i))
        kind = refits.get(now)
        if kind is not None and not (kind is InFlightPolicy.DRAIN and engine._scheduler.running):
            version += 1
            continued |= kind is InFlightPolicy.CONTINUE
            engine.refit(weights(zoo, name, version), version, kind)
        for sample in engine.step():
            assert (sample.request_id, sample.sample) not in together
            together[sample.request_id, sample.sample] = sample
        assert engine.load().running <= max_sequences
        check_pages(engine)
    together |= run_all(engine)
    check_idle(engine)
    assert engine.load().free_sequences == max_sequences
    alone = zoo.engine(name, 1)
    for i, arrival in enumerate(arrivals):
        for j, seed in enumerate(arrival.seeds):
            got = together.pop((str(i), j), None)
            if got is None:
                assert arrival.aborted is not None
                continue
            assert got.versions == sorted(got.versions) and set(got.versions) <= set(range(1, version + 1))
            if continued and len(set(got.versions)) > 1:
                # Keys and values depend on when they were computed; see the test of continuing samples.
                continue
            request = GenerationRequest(f"{i}.{j}", arrival.prompt, (seed,), arrival.sampling)
            expected = generate_alone(alone, request, got.versions, lambda v: weights(zoo, name, v))
            assert facts(got) == facts(expected)
            assert got.behaviour_logprobs == pytest.approx(expected.behaviour_logprobs, abs=1e-4)
            assert got.engine_logprobs == pytest.approx(plain_logprobs(zoo, name, arrival, got), abs=1e-4)
    assert not together


def test_seeds_determine_samples(zoo: Any, run_all: Callable[..., Any]) -> None:
    engine = zoo.engine("llama-gqa")
    samples = run_all(engine, GenerationRequest("r", (1, 2, 3), (11, 12, 11), SamplingParameters(10)))
    assert samples["r", 0].tokens == samples["r", 2].tokens != samples["r", 1].tokens


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
