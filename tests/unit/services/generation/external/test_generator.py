"""The generator over an external engine, here a small exact one: drained, refitted, adapted, released while
idle.
"""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLost,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.external import generator as external_generator
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.generator import ExternalGenerator, GeneratorOptions
from kubealign_services.generation.external.weight_files import WeightFiles, batch_tensors
from kubealign_services.training.adapters.lora import LowRankAdapter
from support.counting_engine import BASE, MODEL, Counter, Running, collected, request

pytestmark = pytest.mark.timeout(60)


def make_generator(
    tmp_path: Path, engine: Counter, *, adapted: bool = False, freed: bool = False
) -> ExternalGenerator:
    return ExternalGenerator(engine, MODEL, WeightFiles(tmp_path), GeneratorOptions(4, adapted, freed))


async def test_samples_and_their_log_probabilities(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 3)
    first, second = await collected(generator, request())
    assert first.tokens == [3, 4, 5] and first.versions == [3, 3, 3]
    assert second.behaviour_logprobs == second.engine_logprobs == [-1.0, -1.0, -1.0]
    (cut, _) = await collected(generator, request(top_p=0.5))
    assert (cut.behaviour_logprobs, cut.engine_logprobs) == ([-0.5] * 3, [-3.0, -4.0, -5.0])
    (cold, _) = await collected(generator, request(top_p=0.5, temperature=0.5))
    assert (cold.behaviour_logprobs, cold.engine_logprobs) == ([-0.5] * 3, [-6.0, -8.0, -10.0])
    (greedy, _) = await collected(generator, request(min_tokens=1, temperature=0))
    assert (greedy.behaviour_logprobs, greedy.engine_logprobs) == ([0.0] * 3, [-3.0, -4.0, -5.0])
    assert generator.in_flight == 0 and generator.load.running == 0
    assert generator.load.generated_tokens == 24
    assert await generator.continuation_logprobs([1], [[4], [5, 6]]) == ([[-4.0], [-5.0, -6.0]], 3)


async def test_weight_files_are_removed_after_loading(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    async with generator.paused(InFlightPolicy.DRAIN):
        await generator.refit(BASE.items(), 1)
    assert torch.equal(engine.weights["layer.weight"], BASE["layer.weight"]) and engine.flushed == 1
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    with pytest.raises(ValueError, match="came twice"):
        await generator.refit([*BASE.items(), *BASE.items()], 2)
    with pytest.raises(RuntimeError, match="no usable weights"):
        await collected(generator, request())


@pytest.mark.parametrize(
    ("tensors", "cause"),
    [
        ({"layer.weight": torch.ones(2, 3)}, "1 of 2 did not come: 'norm.weight'"),
        (BASE | {"layer.weight": torch.ones(3, 2)}, r"'layer.weight' has the shape \[3, 2\], the model's"),
        (BASE | {"extra.weight": torch.ones(1)}, "the model has no 'extra.weight'"),
    ],
)
async def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, tensors: dict[str, Tensor], cause: str
) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 1)
    before = dict(engine.weights)
    with pytest.raises(ValueError, match=cause):
        await generator.refit(tensors.items(), 2)
    with pytest.raises(RuntimeError, match="no usable weights"):
        await collected(generator, request())
    assert engine.flushed == 1
    if "did not come" not in cause:
        assert all(torch.equal(engine.weights[name], weight) for name, weight in before.items())
    await generator.refit(BASE.items(), 3)
    assert {version for sample in await collected(generator, request()) for version in sample.versions} == {3}


async def test_load_counts_samples_that_wait(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    engine.may_answer.clear()
    many = GenerationRequest("g", (1, 2), tuple(range(7)), SamplingParameters(max_tokens=3))
    running = asyncio.create_task(collected(generator, many))
    await asyncio.wait_for(engine.asked.wait(), 10)
    assert (generator.load.running, generator.load.waiting, generator.load.free_sequences) == (4, 3, 0)
    engine.may_answer.set()
    assert len(await running) == 7
    assert (generator.load.running, generator.load.waiting, generator.load.free_sequences) == (0, 0, 4)


async def test_adapters_are_merged_into_the_same_base(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine, adapted=True)
    with pytest.raises(RuntimeError, match="before the weights"):
        await generator.adapt([], 1.0, 1)
    await generator.refit(BASE.items(), 0)
    adapter = LowRankAdapter(torch.ones(1, 3), torch.tensor([[1.0], [2.0]]), None)
    for version in (1, 2):
        await generator.adapt(adapter.named_tensors("layer"), 0.5, version)
    expected = torch.arange(6.0).view(2, 3) + 0.5 * torch.tensor([[1.0] * 3, [2.0] * 3])
    assert torch.equal(engine.weights["layer.weight"], expected)
    with pytest.raises(ValueError, match="no linear layer 'other'"):
        await generator.adapt([*adapter.named_tensors("layer"), *adapter.named_tensors("other")], 0.5, 3)


async def test_pause_drains_running_requests_and_holds_new_ones(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    engine.may_answer.clear()
    running = asyncio.create_task(collected(generator, request("a")))
    await asyncio.sleep(0)
    order: list[str] = []

    async def refit() -> None:
        async with generator.paused(InFlightPolicy.DRAIN):
            order.append("drained")
            await generator.refit(BASE.items(), 1)

    draining = asyncio.create_task(refit())
    for _ in range(5):
        await asyncio.sleep(0)
    later = asyncio.create_task(collected(generator, request("b")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []
    engine.may_answer.set()
    assert {sample.versions[0] for sample in await running} == {0}
    await draining
    assert {sample.versions[0] for sample in await later} == {1}


async def test_closing_early_frees_resources(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    engine.may_answer.clear()
    task = asyncio.create_task(collected(generator, request()))
    await asyncio.wait_for(engine.asked.wait(), 10)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sorted(engine.cancelled) == ["g/0", "g/1"]
    assert generator.in_flight == 0 and generator.load.running == 0


async def test_dead_engine_ends_the_run(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    run = asyncio.create_task(generator.run())
    engine.gone = True
    with pytest.raises(EngineLost, match="it died"):
        await collected(generator, request())
    with pytest.raises(ExternalEngineDied):
        await run


@pytest.mark.parametrize("dies_at", ["gone", "dies_at_flush"])
async def test_engine_found_dead_at_a_refit_ends_the_run(tmp_path: Path, dies_at: str) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    run = asyncio.create_task(generator.run())
    setattr(engine, dies_at, True)
    with pytest.raises(EngineLost, match="it died"):
        await generator.refit(BASE.items(), 1)
    with pytest.raises(ExternalEngineDied):
        await asyncio.wait_for(run, 10)


async def test_idle_engine_releases_memory_and_reloads_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_generator, "IDLE_SECONDS", 0.01)
    engine = Counter()
    generator = make_generator(tmp_path, engine, freed=True)
    await generator.refit(BASE.items(), 0)
    async with Running(generator):
        await asyncio.wait_for(engine.released.wait(), 10)
        assert engine.weights == {}
        await collected(generator, request())
        assert torch.equal(engine.weights["norm.weight"], BASE["norm.weight"])


async def test_only_the_last_adapter_is_kept_for_reloading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_generator, "IDLE_SECONDS", 0.01)
    engine = Counter()
    generator = make_generator(tmp_path, engine, adapted=True, freed=True)
    adapter = LowRankAdapter(torch.ones(1, 3), torch.tensor([[1.0], [2.0]]), None)
    for base in (0, 10):
        await generator.refit(BASE.items(), base)
        counts = []
        for version in (1, 2, 3):
            await generator.adapt(adapter.named_tensors("layer"), 0.5 * version, base + version)
            counts.append(await asyncio.to_thread(lambda: len(list(tmp_path.iterdir()))))
        assert counts == [2, 2, 2], "the base, and the matrices of one adapter"
    expected = engine.weights["layer.weight"].clone()
    async with Running(generator):
        await asyncio.wait_for(engine.released.wait(), 10)
        await collected(generator, request())
    assert torch.equal(engine.weights["layer.weight"], expected)
    assert torch.equal(engine.weights["norm.weight"], BASE["norm.weight"])


async def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    generator = make_generator(tmp_path, Counter())
    await generator.refit(BASE.items(), 0)
    long = GenerationRequest("g", (1,) * 19, (1,), SamplingParameters(max_tokens=3))
    with pytest.raises(RequestRefused, match="context of 20"):
        await collected(generator, long)
    with pytest.raises(RequestRefused, match="a sequence of tokens holds 10; the vocabulary has 0 to 9"):
        await generator.continuation_logprobs([1], [[4], [10]])


def test_batches_are_filled_to_the_limit() -> None:
    tensors = [(name, torch.zeros(size)) for name, size in (("a", 2), ("b", 2), ("c", 9), ("d", 1))]
    assert [list(batch) for batch in batch_tensors(tensors, most_bytes=16)] == [["a", "b"], ["c"], ["d"]]
