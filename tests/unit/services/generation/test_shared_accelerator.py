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


class Nothing:
    """The other tenant."""

    def offload(self) -> None: ...

    def reload(self) -> None: ...


class Shared:
    """An engine with weights, its accelerator lock, and its offloadable memory."""

    def __init__(self, zoo: Any, name: str) -> None:
        self.tenant = EngineTenant()
        self.lease = AcceleratorLock({GENERATION_TENANT: self.tenant, OTHER: Nothing()}, timeout=5.0)
        spec = engine_spec.TorchEngineSpec(max_sequences=8, prefill_tokens=64)

        def passes(config: Any) -> OffloadableModelRunner:
            self.memory = OffloadableModelRunner(CausalModel(config, torch.float32, torch.device("cpu")))
            self.tenant.memory = self.memory
            return self.memory

        made = TorchRolloutEngine.with_runner(zoo.folder(name), spec, passes)
        self.engine = SharedAcceleratorEngine(made, self.lease, self.tenant)
        self.engine.refit(zoo.reference(name).named_parameters(), version=1)

    def disturb(self) -> None:
        """Let the other tenant acquire the accelerator and overwrite its memory."""
        with self.lease.hold(OTHER, "a step"):
            assert self._held_bytes() == 0, "the engine has given everything back"

    def _held_bytes(self) -> int:
        weights = sum(weight.untyped_storage().nbytes() for weight in self.memory.model.module.parameters())
        return weights + self.memory._cache.pages


@pytest.fixture
def shared(zoo: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shared]:
    # The CPU's memory stands for an accelerator's: else nothing would be moved.
    monkeypatch.setattr(offloadable_runner, "make_offloader", HostOffloader)
    return lambda name: Shared(zoo, name)


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, tuple(TOKENS), (1, 2), SamplingParameters(max_tokens=6))


@pytest.mark.parametrize("name", ["llama-gqa", "llama-tied"])
def test_samples_are_equal_after_an_offload(name: str, shared: Any, zoo: Any, run_all: Any) -> None:
    def made(engine: Any, name: str) -> dict[tuple[str, int], GeneratedSample]:
        found = run_all(engine, request(name))
        return {key: replace(sample, seconds=0.0) for key, sample in found.items()}

    held = shared(name)
    wanted = made(zoo.engine(name), "a")
    assert made(held.engine, "a") == wanted
    for _ in range(2):
        held.disturb()
        assert made(held.engine, "a") == wanted
    held.disturb()
    held.engine.refit(
        ((key, 2 * weight) for key, weight in zoo.reference(name).named_parameters()), version=2
    )
    assert held.engine.version == 2
    other = zoo.engine(name)
    other.refit(((key, 2 * weight) for key, weight in zoo.reference(name).named_parameters()), version=2)
    held.disturb()
    assert made(held.engine, "b") == made(other, "b")


def test_adapter_and_base_survive_an_offload(shared: Any, zoo: Any) -> None:
    held, other = shared("llama-gqa"), zoo.engine("llama-gqa")
    layer = "model.layers.0.self_attn.q_proj"
    for version, seed in ((2, 1), (3, 2)):
        generator = torch.Generator().manual_seed(seed)
        part = LowRankAdapter(
            torch.randn(2, 32, generator=generator), torch.randn(32, 2, generator=generator), None
        )
        held.disturb()
        for engine in (held.engine, other):
            engine.adapt(part.named_tensors(layer), 0.5, version)
        held.disturb()
        assert held.engine.sequence_logprobs(TOKENS) == other.sequence_logprobs(TOKENS)


def test_lock_is_held_from_the_first_token_until_idle(shared: Any) -> None:
    held = shared("llama-gqa")
    engine, lease = held.engine, held.lease
    assert lease.holder is None, "a refit lets go of it"
    engine.add(request("a"))
    assert lease.holder is None, "a request that waits computes nothing"
    assert engine.step() == []
    assert lease.holder == GENERATION_TENANT
    engine.sequence_logprobs(TOKENS)
    assert lease.holder == GENERATION_TENANT, "what is asked beside leaves it where it is"
    engine.abort("a")
    assert lease.holder is None
    assert engine.step() == []
    engine.add(request("b"))
    while engine.load().running or engine.load().waiting:
        engine.step()
    assert lease.holder is None
