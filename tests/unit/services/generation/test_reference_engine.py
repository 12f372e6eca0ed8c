"""An engine of policy and reference: the engine contract, and samples of weights that never change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import pytest_asyncio

from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    REFERENCE_VERSION,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.reference_engine import EngineWithReference
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.torch_generator import create_engine_with_reference
from support.engine_contract.generation import CAPACITY, Samples, Subject, torch_engine
from support.engine_contract.own_engines import OwnEngineContract
from support.engine_contract.tiny_model import adapter, model, weights, write_model

pytestmark = pytest.mark.timeout(120)

REFERENCE = 5
SPEC = TorchEngineSpec(max_sequences=CAPACITY)


def request(name: str, from_reference: bool, seed: int = 1) -> GenerationRequest:
    sampling = SamplingParameters(max_tokens=12, min_tokens=12)
    return GenerationRequest(name, (40, 41, 42), (seed, seed + 1), sampling, from_reference)


def engine_in(folder: Path) -> EngineWithReference:
    """Return an engine whose reference has the weights REFERENCE, without weights of the policy."""
    write_model(folder / "policy")
    write_model(folder / "reference")
    model(REFERENCE).save_pretrained(folder / "reference")
    return create_engine_with_reference(folder / "policy", folder / "reference", SPEC)


def finish(engine: EngineWithReference) -> Samples:
    samples: Samples = {}
    while engine.load().running or engine.load().waiting:
        for sample in engine.step():
            samples[sample.request_id, sample.sample] = sample
    return samples


@pytest.mark.full
class TestEngineWithReference(OwnEngineContract):
    @pytest_asyncio.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        engine = engine_in(tmp_path)
        generator = SteppedGenerator(engine, asyncio.to_thread)
        running = asyncio.create_task(generator.run())
        yield Subject(generator, tmp_path / "policy")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("in_flight", [InFlightPolicy.INTERRUPT, InFlightPolicy.CONTINUE])
def test_the_reference_s_samples_do_not_depend_on_the_policy(
    tmp_path: Path, in_flight: InFlightPolicy
) -> None:
    """A refit and an adapter in the middle of both responses change the policy's only."""
    engine, policy = engine_in(tmp_path), tmp_path / "policy"
    engine.refit(weights(1).items(), 1)
    frozen = torch_engine(policy, REFERENCE)
    frozen.add(request("r", False, seed=7))
    expected: Samples = {}
    while frozen.load().running or frozen.load().waiting:
        expected |= {(sample.request_id, sample.sample): sample for sample in frozen.step()}
    engine.add(request("p", False))
    engine.add(request("r", True, seed=7))
    for _ in range(4):
        assert engine.step() == []
    assert engine.load().running == 4
    engine.refit(weights(2).items(), 2, in_flight)
    for _ in range(4):
        engine.step()
    engine.adapt(adapter(3).items(), 1.0, 3, in_flight)
    assert engine.version == 3
    samples = finish(engine)
    assert samples["p", 0].versions == [1] * 4 + [2] * 4 + [3] * 4
    for index in (0, 1):
        sample = samples["r", index]
        assert sample.versions == [REFERENCE_VERSION] * 12
        assert sample.tokens == expected["r", index].tokens
        assert sample.engine_logprobs == pytest.approx(expected["r", index].engine_logprobs, abs=1e-6)
    assert engine.load().generated_tokens == 4 * 12


def test_requests_of_either_model_can_be_dropped(tmp_path: Path) -> None:
    engine = engine_in(tmp_path)
    engine.refit(weights(1).items(), 1)
    engine.add(request("p", False))
    engine.add(request("r", True))
    engine.step()
    engine.abort("r")
    assert (engine.load().running, set(finish(engine))) == (2, {("p", 0), ("p", 1)})


@pytest.mark.parametrize(("pages", "fits"), [(9, False), (10, True)])
def test_policy_and_reference_have_half_of_the_cache_each(tmp_path: Path, pages: int, fits: bool) -> None:
    """A response to 60 tokens with 20 more needs 5 pages of 16 tokens, of 8 KiB each."""
    write_model(tmp_path)
    model(REFERENCE).save_pretrained(tmp_path)
    engine = create_engine_with_reference(
        tmp_path, tmp_path, TorchEngineSpec(cache_gib=pages * 2**13 / 2**30)
    )
    for from_reference in (False, True):
        long = GenerationRequest("r", (1,) * 60, (1,), SamplingParameters(max_tokens=20), from_reference)
        with nullcontext() if fits else pytest.raises(RequestRefused, match="and the engine has"):
            engine.add(long)


def test_an_engine_without_a_reference_refuses_its_samples(tmp_path: Path) -> None:
    engine = torch_engine(write_model(tmp_path), 1)
    with pytest.raises(
        RequestRefused, match=r"from_reference is set, and this engine has .* the policy only"
    ):
        engine.add(request("r", True))


def test_weights_of_another_version_cannot_be_the_reference_s(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with pytest.raises(ValueError, match="have version 2; it must be -1"):
        EngineWithReference(torch_engine(folder, 1), torch_engine(folder, 2))
