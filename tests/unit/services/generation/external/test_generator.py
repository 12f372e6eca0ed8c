"""The generator over an external engine, here a small exact one: drained, refitted, adapted, released while
idle.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.external import generator as external_generator
from kubealign_services.generation.external.contract import ExternalEngineDied, ExternalSample
from kubealign_services.generation.external.generator import ExternalGenerator, GeneratorOptions, ModelInfo
from kubealign_services.generation.external.native_adapters import AdapterShape, NativeAdapters
from kubealign_services.generation.external.weight_files import WeightFiles, batch_tensors
from kubealign_services.training.adapters.lora import LowRankAdapter

pytestmark = pytest.mark.timeout(60)


class Counter:
    """An ExternalEngine that counts up from the prompt's last token and exposes its loaded weights."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.flushed = 0
        self.resting = False
        self.gone = False
        self.dies_at_flush = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled: list[str] = []

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        self.asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise
        if self.gone:
            raise ExternalEngineDied("it died")
        assert not self.resting
        tokens = [(prompt[-1] + i + 1) % 10 for i in range(sampling.max_tokens)]
        return ExternalSample(tokens, [-0.5 * seed] * len(tokens))

    async def score(self, request_id: str, tokens: list[int]) -> list[float]:
        return [-float(token) for token in tokens[1:]]

    async def load_weights(self, file: Path) -> None:
        if self.gone:
            raise ExternalEngineDied("it died")
        assert not self.resting
        self.weights |= load_file(file)

    async def finish_weight_update(self) -> None:
        if self.dies_at_flush:
            raise ExternalEngineDied("it died")
        self.flushed += 1

    async def release_memory(self) -> None:
        self.resting = True
        self.released.set()
        self.weights.clear()

    async def resume_memory(self) -> None:
        self.resting = False

    async def close(self) -> None: ...


MODEL = ModelInfo(
    20,
    10,
    frozenset({9}),
    lambda tokens: "".join(map(str, tokens)),
    ExpectedWeights(
        torch.nn.ModuleDict({"layer": torch.nn.Linear(3, 2, bias=False), "norm": torch.nn.RMSNorm(3)})
    ),
)


def make_generator(
    tmp_path: Path, engine: Counter, *, adapted: bool = False, freed: bool = False
) -> ExternalGenerator:
    return ExternalGenerator(engine, MODEL, WeightFiles(tmp_path), GeneratorOptions(4, adapted, freed))


def request(name: str = "g", **sampling: float) -> GenerationRequest:
    parameters = SamplingParameters(max_tokens=3, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(name, (1, 2), (1, 2), parameters)


async def collected(generator: ExternalGenerator, asked: GenerationRequest) -> list[GeneratedSample]:
    return sorted([sample async for sample in generator.generate(asked)], key=lambda sample: sample.sample)


BASE = {"layer.weight": torch.arange(6.0).view(2, 3), "norm.weight": torch.ones(3)}


async def test_samples_and_their_log_probabilities(tmp_path: Path) -> None:
    engine = Counter()
    generator = make_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 3)
    first, second = await collected(generator, request())
    assert first.tokens == [3, 4, 5] and first.versions == [3, 3, 3]
    assert second.behaviour_logprobs == second.engine_logprobs == [-1.0, -1.0, -1.0]
    (cut, _) = await collected(generator, request(top_p=0.5))
    assert (cut.behaviour_logprobs, cut.engine_logprobs) == ([-0.5] * 3, [-3.0, -4.0, -5.0])
    assert generator.in_flight == 0 and generator.load.running == 0
    assert generator.load.generated_tokens == 12
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
    async with _running(generator):
        await asyncio.wait_for(engine.released.wait(), 10)
        assert engine.weights == {}
        await collected(generator, request())
        assert torch.equal(engine.weights["norm.weight"], BASE["norm.weight"])


class _running:
    def __init__(self, generator: ExternalGenerator) -> None:
        self._task = asyncio.create_task(generator.run())

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


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


class Adapting(Counter):
    """A Counter that applies adapters itself and exposes the one it has loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter: dict[str, Tensor] = {}
        self.alpha = 0.0

    async def load_adapter(self, folder: Path) -> None:
        if self.gone:
            raise ExternalEngineDied("it died")
        assert not self.resting
        self.adapter = load_file(folder / "adapter_model.safetensors")
        self.alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]

    async def drop_adapter(self) -> None:
        self.adapter = {}

    async def release_memory(self) -> None:
        self.adapter = {}
        await super().release_memory()


def make_adapting_generator(tmp_path: Path, engine: Adapting, *, freed: bool = False) -> ExternalGenerator:
    files = WeightFiles(tmp_path)
    native = NativeAdapters(engine, AdapterShape(2, {"layer": (2, 3), "other": (2, 2)}), files, freed)
    return ExternalGenerator(engine, MODEL, files, GeneratorOptions(4, True, freed), native=native)


def low_rank(value: float, rank: int = 2, inputs: int = 3) -> LowRankAdapter:
    return LowRankAdapter(torch.full((rank, inputs), value), torch.ones(2, rank), None)


async def test_native_adapters_leave_the_base_weights_alone(tmp_path: Path) -> None:
    engine = Adapting()
    generator = make_adapting_generator(tmp_path, engine)
    with pytest.raises(RuntimeError, match="before the weights"):
        await generator.adapt(low_rank(1.0).named_tensors("layer"), 0.5, 1)
    await generator.refit(BASE.items(), 0)
    for version in (1, 2):
        await generator.adapt(low_rank(version).named_tensors("layer"), 0.5, version)
        assert torch.equal(
            engine.adapter["base_model.model.layer.lora_A.weight"], torch.full((2, 3), float(version))
        )
        assert engine.alpha == 0.5 * 2
        assert (await collected(generator, request()))[0].versions == [version] * 3
    assert torch.equal(engine.weights["layer.weight"], BASE["layer.weight"]) and engine.flushed == 1
    assert not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    await generator.refit(BASE.items(), 3)
    assert engine.adapter == {} and (await collected(generator, request()))[0].versions == [3] * 3


@pytest.mark.parametrize(
    ("adapters", "cause"),
    [
        ({"head": low_rank(2.0)}, "1 layers did not come: layer"),
        ({"layer": low_rank(2.0), "head": low_rank(2.0)}, "no linear layer 'head'"),
        ({"layer": low_rank(2.0, inputs=4)}, r"the parts of layer have the shapes \[2, 4\] and \[2, 2\]"),
        ({"layer": low_rank(2.0, rank=3)}, "layer has rank 3, trainer.lora 2"),
        ({"layer": replace(low_rank(2.0), magnitude=torch.ones(2))}, r"layer has a magnitude \(DoRA\)"),
    ],
)
async def test_native_adapters_that_do_not_fit_change_nothing(
    tmp_path: Path, adapters: dict[str, LowRankAdapter], cause: str
) -> None:
    engine = Adapting()
    generator = make_adapting_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    await generator.adapt(low_rank(1.0).named_tensors("layer"), 0.5, 1)
    before = engine.adapter
    named = [each for layer, adapter in adapters.items() for each in adapter.named_tensors(layer)]
    with pytest.raises(ValueError, match=cause):
        await generator.adapt(named, 0.5, 2)
    assert engine.adapter is before and not await asyncio.to_thread(lambda: list(tmp_path.iterdir()))
    assert (await collected(generator, request()))[0].versions == [1] * 3
    both = [*low_rank(1.0).named_tensors("layer"), *low_rank(1.0, inputs=2).named_tensors("other")]
    await generator.adapt(both, 0.5, 3)
    with pytest.raises(ValueError, match="1 layers did not come: other"):
        await generator.adapt(both[:2], 0.5, 4)
    # Another base may have another adapter.
    await generator.refit(BASE.items(), 5)
    await generator.adapt(both[:2], 0.5, 6)


async def test_idle_engine_reloads_its_native_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_generator, "IDLE_SECONDS", 0.01)
    engine = Adapting()
    generator = make_adapting_generator(tmp_path, engine, freed=True)
    await generator.refit(BASE.items(), 0)
    for version in (1, 2):
        await generator.adapt(low_rank(version).named_tensors("layer"), 0.5, version)
    loaded = engine.adapter
    async with _running(generator):
        await asyncio.wait_for(engine.released.wait(), 10)
        assert engine.adapter == {} == engine.weights
        await collected(generator, request())
        assert engine.adapter.keys() == loaded.keys()
        assert all(torch.equal(engine.adapter[name], tensor) for name, tensor in loaded.items())
        [folder] = await asyncio.to_thread(lambda: [path for path in tmp_path.iterdir() if path.is_dir()])
        await generator.refit(BASE.items(), 3)
        assert engine.adapter == {} and not await asyncio.to_thread(folder.exists)


async def test_engine_found_dead_at_a_native_adapter_ends_the_run(tmp_path: Path) -> None:
    engine = Adapting()
    generator = make_adapting_generator(tmp_path, engine)
    await generator.refit(BASE.items(), 0)
    run = asyncio.create_task(generator.run())
    engine.gone = True
    with pytest.raises(EngineLost, match="it died"):
        await generator.adapt(low_rank(1.0).named_tensors("layer"), 0.5, 1)
    with pytest.raises(ExternalEngineDied):
        await asyncio.wait_for(run, 10)
    with pytest.raises(RuntimeError, match="no usable weights"):
        await collected(generator, request())
