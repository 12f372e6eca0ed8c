"""Checkpoints are written in one layout and read in another: each rank gets its part of the state."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import CorruptCheckpoint
from kubealign_services.training.files.shard_files import description_digest
from kubealign_services.training.megatron_backend.weights.checkpoint import load_shards, save_shard
from kubealign_services.training.megatron_backend.weights.checkpoint_shards import ParameterState
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes, WeightConversion
from kubealign_services.training.megatron_backend.weights.rank_slices import tensor_owners
from support.megatron_models import config_of, conversions_of

HEADS = HeadSizes(scores=2)
PARTS = ("master", "exp_avg", "exp_avg_sq")

Wholes = dict[str, dict[str, Tensor]]


def drawn(conversions: list[WeightConversion], seed: int = 0) -> Wholes:
    """Draw every tensor of the checkpoint at random, for each part of the state."""
    generator = torch.Generator().manual_seed(seed)
    return {
        part: {
            name: torch.randn(next(iter(owners.values())).slices[0].tensor_shape, generator=generator)
            for name, owners in tensor_owners(conversions, lambda name: True).items()
        }
        for part in PARTS
    }


def rank_state(conversion: WeightConversion, wholes: Wholes) -> dict[str, ParameterState]:
    """Build a rank's state independently of the product: element by element, from each element's origin."""
    states = {}
    for name, shape in conversion.shapes.items():
        state = ParameterState(*(torch.zeros(shape) for _ in PARTS))
        for part in conversion.slices_of(name):
            for offset in product(*map(range, part.size)):
                source = tuple(map(sum, zip(offset, part.start, strict=True)))
                target = tuple(map(sum, zip(offset, part.local_start, strict=True)))
                for kind in PARTS:
                    getattr(state, kind)[target] = wholes[kind][part.name][source]
        states[name] = state
    return states


def written(
    folder: Path, conversions: list[WeightConversion], updates: int = 5, lora: Lora | None = None
) -> Wholes:
    wholes = drawn(conversions)
    folder.mkdir(exist_ok=True)
    for rank, conversion in enumerate(conversions):
        names = save_shard(folder, conversions, rank, rank_state(conversion, wholes).items(), 5)
        assert all((folder / name).is_file() for name in names)
    return wholes


def tiny(family: str) -> object:
    """Return a config small enough for element-by-element loops."""
    small = {
        "hidden_size": 4,
        "head_dim": 2,
        "num_attention_heads": 4,
        "vocab_size": 5,
        "num_hidden_layers": 2,
    }
    return config_of(family, intermediate_size=4, **small)


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        ("qwen2", {"tensor": 2, "pipeline": 2}, {}),
        ("qwen2", {}, {"tensor": 2, "pipeline": 2, "data": 2}),
        ("mixtral", {"expert": 2, "data": 2}, {"tensor": 2, "context": 2, "expert": 4, "data": 2}),
    ],
    ids=["4 ranks to 1", "1 to 8", "experts over 2 to 4"],
)
def test_any_layout_reads_checkpoints_of_any_other(
    family: str, before: dict[str, int], after: dict[str, int], tmp_path: Path
) -> None:
    wholes = written(tmp_path, conversions_of(tiny(family), HEADS, **before))
    conversions = conversions_of(tiny(family), HEADS, **after)
    for rank, conversion in enumerate(conversions):
        states, updates = load_shards(tmp_path, conversions, rank, conversion.shapes)
        assert updates == 5
        expected = rank_state(conversion, wholes)
        assert states.keys() == expected.keys()
        for name, state in states.items():
            for kind in PARTS:
                assert torch.equal(getattr(state, kind), getattr(expected[name], kind)), name


def test_the_same_rank_restores_its_rng_state(tmp_path: Path) -> None:
    conversions = conversions_of(tiny("llama"), tensor=2)
    wholes = drawn(conversions)
    with torch.random.fork_rng(devices=[]):
        following = []
        for rank, conversion in enumerate(conversions):
            torch.manual_seed(40 + rank)
            save_shard(tmp_path, conversions, rank, rank_state(conversion, wholes).items(), 1)
            following.append(torch.rand(3))
        for rank, conversion in enumerate(conversions):
            load_shards(tmp_path, conversions, rank, conversion.shapes)
            assert torch.equal(torch.rand(3), following[rank])


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, list[WeightConversion]]:
    conversions = conversions_of(tiny("llama"), tensor=2)
    written(tmp_path, conversions)
    return tmp_path, conversions


def load(folder: Path, conversions: list[WeightConversion], lora: Lora | None = None) -> None:
    load_shards(folder, conversions, 0, conversions[0].shapes, lora)


def test_an_altered_file_is_named(checkpoint: tuple[Path, list[WeightConversion]]) -> None:
    folder, conversions = checkpoint
    file = folder / "shard-00000-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptCheckpoint, match=r"shard-00000-of-00002\.safetensors is not as it was"):
        load(folder, conversions)


def test_an_altered_description_is_named(checkpoint: tuple[Path, list[WeightConversion]]) -> None:
    folder, conversions = checkpoint
    file = folder / "shard-00001-of-00002.json"
    file.write_text(file.read_text().replace('"updates": 5', '"updates": 6'))
    with pytest.raises(CorruptCheckpoint, match=r"shard-00001-of-00002\.json is not as it was written"):
        load(folder, conversions)


def test_a_missing_shard_is_named(checkpoint: tuple[Path, list[WeightConversion]]) -> None:
    folder, conversions = checkpoint
    (folder / "shard-00001-of-00002.json").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"shard-00001-of-00002\.json cannot be read"):
        load(folder, conversions)
    with pytest.raises(CorruptCheckpoint, match="holds no shards"):
        load(folder / "nowhere", conversions)


def test_a_missing_range_is_named(checkpoint: tuple[Path, list[WeightConversion]]) -> None:
    folder, _ = checkpoint
    file = folder / "shard-00001-of-00002.json"
    description = json.loads(file.read_text())
    description["pieces"] = [piece for piece in description["pieces"] if piece["name"] != "lm_head.weight"]
    description["digest"] = description_digest(description)
    file.write_text(json.dumps(description))
    (full,) = conversions_of(tiny("llama"))
    with pytest.raises(CorruptCheckpoint, match=r"lacks a part of lm_head\.weight.* hold 12 of 20 numbers"):
        load(folder, [full])


def test_another_model_is_named(checkpoint: tuple[Path, list[WeightConversion]]) -> None:
    folder, _ = checkpoint
    with pytest.raises(CorruptCheckpoint, match=r"lacks a part of .*\.bias"):
        load(folder, conversions_of(tiny("qwen2")))
    with pytest.raises(CorruptCheckpoint, match=r"of another model: .*embed_tokens.* differ"):
        load(folder, conversions_of(config_of("llama")))


def test_a_checkpoint_of_another_backend_or_adapter_is_named(
    checkpoint: tuple[Path, list[WeightConversion]],
) -> None:
    folder, conversions = checkpoint
    with pytest.raises(CorruptCheckpoint, match=r"is of all weights; this job trains an adapter"):
        load(folder, conversions, Lora(rank=2))
    for rank in range(2):
        file = folder / f"shard-0000{rank}-of-00002.json"
        description = {**json.loads(file.read_text()), "format": 1}
        description["digest"] = description_digest(description)
        file.write_text(json.dumps(description))
    with pytest.raises(CorruptCheckpoint, match=r"has format 1; the Megatron backend reads megatron-1"):
        load(folder, conversions)


def test_replicas_write_nothing_twice(tmp_path: Path) -> None:
    conversions = conversions_of(tiny("llama"), data=2, context=2)
    written(tmp_path, conversions)
    sizes = [
        len(json.loads((tmp_path / f"shard-0000{rank}-of-00004.json").read_text())["pieces"])
        for rank in range(4)
    ]
    assert sizes[0] == len(tensor_owners(conversions, lambda name: True))
    assert sizes[1:] == [0, 0, 0]
    assert asdict(conversions[3].layout)["data_rank"] == 1
