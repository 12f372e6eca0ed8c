"""Adapters that an external engine, here a small exact one, applies itself."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from kubealign_services.generation.contract import EngineLost
from kubealign_services.generation.external import generator as external_generator
from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.generator import ExternalGenerator, GeneratorOptions
from kubealign_services.generation.external.native_adapters import AdapterShape, NativeAdapters
from kubealign_services.generation.external.weight_files import WeightFiles
from kubealign_services.training.adapters.lora import LowRankAdapter
from support.counting_engine import BASE, MODEL, Counter, Running, collected, request

pytestmark = pytest.mark.timeout(60)


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
    async with Running(generator):
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
