"""Weight sync from Megatron ranks (tensor 2 x pipeline 2) to engines of one and two processes: engines
reproduce the trainer's canary log-probabilities, over every transport of weights or an adapter.
"""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest
from safetensors.torch import load_file

from kubealign.spec.sections.rollout import WeightEncoding
from kubealign.v1 import refit_pb2
from support.refit_ranks import RANKS
from support.refit_site import Site, Workers, opened

pytestmark = pytest.mark.timeout(280)

SIZES = {
    "hidden_size": 32, "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
#: Tied embeddings: the first stage and the last hold the same rows. Untied: queries, keys and values have
#: biases.
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"model_type": "llama", "tie_word_embeddings": True, **SIZES},
    "untied": {"model_type": "qwen2", "tie_word_embeddings": False, **SIZES},
}
#: Access to the trainer's shared memory, and the encoding that workers request of a stream.
WAYS = {
    "shared_memory": (True, WeightEncoding.DENSE),
    "stream": (False, WeightEncoding.DENSE),
    "delta": (False, WeightEncoding.DELTA),
}
TRANSPORTS = {"shared_memory": "shared_memory", "stream": "stream", "delta": "stream"}
OF_MODELS = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    families = tuple(architecture["model_type"] for architecture in MODELS.values())
    with opened(tmp_path_factory.mktemp("refit"), families) as opened_site:
        yield opened_site


async def agreed(workers: Workers, way: str) -> dict[int, refit_pb2.RefitAcknowledgement]:
    """Refit both workers, check that their log-probabilities equal the trainer's and differ from the previous
    version's, and return the acknowledgements."""
    acknowledgements = await workers.take()
    for processes, answer in acknowledgements.items():
        assert answer.canary_gap < 1e-5, (processes, answer)
        assert answer.transport == TRANSPORTS[way], (processes, answer)
    announced = [announcement.canary.logprobs for announcement in workers.site.announced]
    if len(announced) > 1:
        assert max(abs(then - now) for then, now in zip(*announced[-2:], strict=True)) > 0.01
    return acknowledgements


@pytest.mark.parametrize("way", WAYS)
@OF_MODELS
async def test_weight_sync_of_all_weights(name: str, way: str, site: Site) -> None:
    model = await asyncio.to_thread(site.open, name, MODELS[name])
    async with site.workers(model, *WAYS[way], base=False) as workers:
        for step in range(3):
            acknowledgements = await agreed(workers, way)
            # The first of two processes has the parts of each stage's first rank and fetches from no other.
            in_changes = {1: RANKS, 2: RANKS // 2} if way == "delta" and step else {1: 0, 2: 0}
            assert {
                processes: answer.delta_parts for processes, answer in acknowledgements.items()
            } == in_changes
            sizes = {processes: answer.received_bytes for processes, answer in acknowledgements.items()}
            assert sizes[2] < 0.6 * sizes[1] or way == "shared_memory"
            await asyncio.to_thread(site.train)
    # Each rank has a part; together the parts are the checkpoint, without duplicates or padding.
    parts = site.announced[-1].parts
    assert [part.rank for part in parts] == list(range(RANKS)) and all(part.tensors for part in parts)
    sent: dict[str, int] = {}
    for entry in (entry for part in parts for entry in part.tensors):
        sent[entry.name] = sent.get(entry.name, 0) + math.prod(entry.shape)
    assert sent == {
        tensor: weight.numel() for tensor, weight in load_file(model / "model.safetensors").items()
    }


@pytest.mark.parametrize("way", ["shared_memory", "stream"])
@OF_MODELS
async def test_weight_sync_of_an_adapter(name: str, way: str, site: Site) -> None:
    model = await asyncio.to_thread(site.open, name, MODELS[name], lora=True)
    async with site.workers(model, *WAYS[way], base=True) as workers:
        for _ in range(3):
            await agreed(workers, way)
            await asyncio.to_thread(site.train)
    announcement = site.announced[-1]
    assert announcement.adapter.scale == 4.0
    assert all("lora_" in entry.name for part in announcement.parts for entry in part.tensors)
