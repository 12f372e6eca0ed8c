"""An engine that shares its accelerator: when it holds the lock, and equal samples after an offload."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kubealign.spec.sections import engines as engine_spec
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.shared_accelerator import (
    GENERATION_TENANT,
    EngineTenant,
    SharedAcceleratorEngine,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.model import offloadable_runner
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.offloadable_runner import OffloadableModelRunner
from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock
from kubealign_services.runtime.offload.host_offloader import HostOffloader
from kubealign_services.training.adapters.lora import LowRankAdapter

pytestmark = pytest.mark.timeout(60)
TOKENS = [5, 6, 7, 8, 9]
OTHER = "training"


class OtherTenant:
    """The other tenant."""

    def offload(self) -> None: ...

    def reload(self) -> None: ...


class Shared:
    """An engine with weights, its accelerator lock, and its offloadable memory."""

    def __init__(self, zoo: Any, name: str) -> None:
        self.tenant = EngineTenant()
        self.lease = AcceleratorLock({GENERATION_TENANT: self.tenant, OTHER: OtherTenant()}, timeout=5.0)
        spec = engine_spec.TorchEngineSpec(max_sequences=8, prefill_tokens=64)

        def passes(config: Any) -> OffloadableModelRunner:
            self.memory = OffloadableModelRunner(CausalModel(config, torch.float32, torch.device("cpu")))
            self.tenant.memory = self.memory
            return self.memory

        torch_engine = TorchRolloutEngine.with_runner(zoo.folder(name), spec, passes)
        self.engine = SharedAcceleratorEngine(torch_engine, self.lease, self.tenant)
        self.engine.refit(zoo.reference(name).named_parameters(), version=1)

    def disturb(self) -> None:
        """Let the other tenant acquire the accelerator and overwrite its memory."""
        with self.lease.hold(OTHER, "a step"):
            assert self._held_bytes() == 0, "the engine has released all its memory"

    def _held_bytes(self) -> int:
        weights = sum(weight.untyped_storage().nbytes() for weight in self.memory.model.module.parameters())
        return weights + self.memory._cache.pages


@pytest.fixture
def shared(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shared]:
    # CPU memory stands in for accelerator memory; otherwise nothing would be offloaded.
    monkeypatch.setattr(offloadable_runner, "make_offloader", HostOffloader)
    return lambda name: Shared(zoo, name)


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, tuple(TOKENS), (1, 2), SamplingParameters(max_tokens=6))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa", "llama-tied"])
def test_samples_are_equal_after_an_offload(name: str, shared: Any, zoo: Any, run_all: Any) -> None:
    def generate(engine: Any, name: str) -> dict[tuple[str, int], GeneratedSample]:
        samples = run_all(engine, request(name))
        return {key: replace(sample, seconds=0.0) for key, sample in samples.items()}

    shared_engine = shared(name)
    expected = generate(zoo.engine(name), "a")
    assert generate(shared_engine.engine, "a") == expected
    for _ in range(2):
        shared_engine.disturb()
        assert generate(shared_engine.engine, "a") == expected
    shared_engine.disturb()
    shared_engine.engine.refit(
        ((key, 2 * weight) for key, weight in zoo.reference(name).named_parameters()), version=2
    )
    assert shared_engine.engine.version == 2
    other = zoo.engine(name)
    other.refit(((key, 2 * weight) for key, weight in zoo.reference(name).named_parameters()), version=2)
    shared_engine.disturb()
    assert generate(shared_engine.engine, "b") == generate(other, "b")


def test_adapter_and_base_survive_an_offload(shared: Any, zoo: Any) -> None:
    shared_engine, other = shared("llama-gqa"), zoo.engine("llama-gqa")
    layer = "model.layers.0.self_attn.q_proj"
    for version, seed in ((2, 1), (3, 2)):
        generator = torch.Generator().manual_seed(seed)
        part = LowRankAdapter(
            torch.randn(2, 32, generator=generator), torch.randn(32, 2, generator=generator), None
        )
        shared_engine.disturb()
        for engine in (shared_engine.engine, other):
            engine.adapt(part.named_tensors(layer), 0.5, version)
        shared_engine.disturb()
        assert shared_engine.engine.sequence_logprobs(TOKENS) == other.sequence_logprobs(TOKENS)


def test_lock_is_held_from_the_first_token_until_idle(shared: Any) -> None:
    shared_engine = shared("llama-gqa")
    engine, lease = shared_engine.engine, shared_engine.lease
    assert lease.holder is None, "a refit releases the lock"
    engine.add(request("a"))
    assert lease.holder is None, "a waiting request computes nothing"
    assert engine.step() == []
    assert lease.holder == GENERATION_TENANT
    engine.sequence_logprobs(TOKENS)
    assert lease.holder == GENERATION_TENANT, "a log-probability request does not release the lock"
    engine.abort("a")
    assert lease.holder is None
    assert engine.step() == []
    engine.add(request("b"))
    while engine.load().running or engine.load().waiting:
        engine.step()
    assert lease.holder is None
