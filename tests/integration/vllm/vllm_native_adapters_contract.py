"""Adapters that vLLM applies itself, compared with the torch engine, which merges them; run in vLLM's
environment by `test_vllm_contract.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from kubealign.spec.sections.engines import AdapterMode, VllmEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.spec.sections.training import Lora, LoraTargetLayers
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from support.engine_contract.every_engine import EngineContract
from support.engine_contract.generation import (
    CAPACITY,
    SECONDS,
    Subject,
    check_same,
    generated,
    group,
    refitted,
    stepped,
    torch_engine,
)
from support.engine_contract.tiny_model import adapter, write_model
from support.external_stage import Stage, open_stage

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SPEC = VllmEngineSpec(
    precision=Precision.FLOAT32, cache_gib=0.25, max_sequences=CAPACITY, adapters=AdapterMode.NATIVE
)
LORA = Lora(rank=2, targets=LoraTargetLayers(names=["q_proj"]))
#: Room for prompts of more than two blocks.
CONTEXT = 512
#: More than two of the blocks of 128 tokens that vLLM caches on a CPU.
LONG_PROMPT = tuple((7 * i) % 250 for i in range(300))
LAYER = "model.layers.1.self_attn.q_proj"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder, memory = write_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("memory")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    async with open_stage(SPEC, LORA, folder, memory) as new_stage:
        yield new_stage


@pytest_asyncio.fixture(loop_scope="module")
async def subject(stage: Stage) -> Subject:
    return stage.subject


async def adapted(subject: Subject, tensors: dict[str, Tensor], version: int) -> None:
    async with asyncio.timeout(SECONDS), subject.generator.paused(InFlightPolicy.DRAIN):
        await subject.generator.adapt(tensors.items(), 0.5, version)


def torch_adapted(folder: Path, seed: int) -> TorchRolloutEngine:
    """Return a torch engine of weight version 1 with an adapter of version `seed` merged into it."""
    engine = torch_engine(folder, 1)
    engine.adapt(adapter(seed).items(), 0.5, seed)
    return engine


async def check_adapted(subject: Subject, seed: int) -> None:
    """Check greedy tokens, log-probabilities of truncated samples, and those of given tokens."""
    engine = torch_adapted(subject.folder, seed)
    greedy = group(f"greedy {seed}", 1, temperature=0.0)
    check_same(await generated(subject.generator, greedy), stepped(engine, greedy))
    tokens = [7, 200, 31, 4, 4, 90]
    expected = engine.sequence_logprobs(tokens)
    async with asyncio.timeout(SECONDS):
        async with subject.generator.paused(InFlightPolicy.DRAIN):
            canary = await subject.generator.sequence_logprobs(tokens)
        [given], version = await subject.generator.continuation_logprobs(tokens[:2], [tokens[2:]])
    assert canary == pytest.approx(expected, abs=1e-4)
    assert given == pytest.approx(expected[1:], abs=1e-4) and version == seed
    narrow = group(f"narrow {seed}", 1, 2, top_k=4, top_p=0.6)
    for sample in (await generated(subject.generator, narrow)).values():
        full = engine.sequence_logprobs([*narrow.prompt_tokens, *sample.tokens])
        assert sample.engine_logprobs == pytest.approx(full[len(narrow.prompt_tokens) - 1 :], abs=1e-4)
        assert set(sample.versions) == {seed}


class TestContract(EngineContract):
    context = CONTEXT

    @pytest_asyncio.fixture(loop_scope="module")
    async def subject(self, stage: Stage) -> Subject:
        return stage.subject


async def test_each_version_has_its_own_adapter(subject: Subject) -> None:
    await refitted(subject, 1)
    for seed in (3, 4):
        await adapted(subject, adapter(seed), seed)
        await check_adapted(subject, seed)


async def test_a_refit_drops_the_adapter(subject: Subject) -> None:
    await refitted(subject, 1)
    await adapted(subject, adapter(3), 3)
    await refitted(subject, 1)
    tokens = [7, 200, 31, 4, 4, 90]
    plain = torch_engine(subject.folder, 1).sequence_logprobs(tokens)
    async with subject.generator.paused(InFlightPolicy.DRAIN):
        assert await subject.generator.sequence_logprobs(tokens) == pytest.approx(plain, abs=1e-4)


async def test_cached_prefixes_belong_to_one_version(subject: Subject) -> None:
    """A response after a long prompt that the engine has computed with another adapter, or without one."""
    await refitted(subject, 1)
    for seed in (None, 3, 4, 3):
        engine = torch_engine(subject.folder, 1) if seed is None else torch_adapted(subject.folder, seed)
        if seed is not None:
            await adapted(subject, adapter(seed), seed)
        for time in (1, 2):
            request = group(f"{seed} {time}", 1, temperature=0.0, prompt=LONG_PROMPT)
            check_same(await generated(subject.generator, request), stepped(engine, request))


async def test_invalid_adapters_are_refused_by_name(subject: Subject) -> None:
    await refitted(subject, 1)
    await adapted(subject, adapter(3), 3)
    other = adapter(4)
    down, up = f"{LAYER}.lora_A.weight", f"{LAYER}.lora_B.weight"
    wide = {name: torch.cat([part, part], int(name == up)) for name, part in other.items() if LAYER in name}
    for bad, why in (
        (other | {"model.embed_tokens.lora_A.weight": torch.ones(2, 258)}, "embed_tokens.lora_B.weight"),
        (other | {"lm_head.surplus": torch.ones(2)}, "'lm_head.surplus' is not an adapter tensor"),
        (other | {name.replace(LAYER, "other"): other[name] for name in (down, up)}, "layer 'other'"),
        (other | {up: torch.ones(48, 2)}, f"the parts of {LAYER} have the shapes"),
        ({name: part for name, part in other.items() if name != up}, up),
        ({name: part for name, part in other.items() if LAYER not in name}, f"1 layers .* {LAYER}"),
        (other | wide, f"{LAYER} has rank 4, trainer.lora 2"),
        (other | {f"{LAYER}.lora_magnitude_vector": torch.ones(64)}, f"{LAYER} has a magnitude"),
    ):
        with pytest.raises(ValueError, match=why):
            await adapted(subject, bad, 4)
    await check_adapted(subject, 3)
