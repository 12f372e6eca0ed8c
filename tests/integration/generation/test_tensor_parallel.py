"""Two processes that share a model generate the same as one: real processes, real collectives."""

import functools
import multiprocessing as mp
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import AddedToken, Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from kubealign.spec.sections import engines as engine_spec
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.tensor_parallel.engine_factory import (
    create_leader_engine,
    create_worker_runner,
)
from kubealign_services.generation.torch_engine.tensor_parallel.leader import PartsMissing, ProcessesLost
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import (
    ModelShard,
    shard_extent,
    shard_tensor,
)
from kubealign_services.generation.torch_engine.tensor_parallel.worker import run_worker
from kubealign_services.runtime.process.rank_rendezvous import join_process_group
from kubealign_services.training.adapters.lora import LowRankAdapter
from kubealign_services.training.weight_slices import WeightSlice
from support.free_address import free_address

pytestmark = pytest.mark.timeout(300)

# An odd size: one process has one row of the vocabulary more than the other.
VOCABULARY = 67
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "eos_token_id": 65,
    "pad_token_id": 66,
    "bos_token_id": None,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-tied": lambda: LlamaConfig(**COMMON, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=16),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=5),
}
SPEC = engine_spec.TorchEngineSpec(max_sequences=6, prefill_tokens=1024, tensor_parallel=2)
#: Seed of the weights that the second process fails to fetch.
OUT_OF_REACH = 99
#: Seconds until the second process must have joined; it imports transformers first.
MEETING = 150.0
SEQUENCE = [5, 6, 7, 8, 60, 64, 9]


def write_model(folder: Path, name: str) -> Path:
    """Write configuration and tokenizer; weights arrive by refit."""
    pieces = {f"<{i}>": i for i in range(65)} | {"<eos>": 65, "<pad>": 66}
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=Tokenizer(models.WordLevel(pieces, unk_token="<0>")),
        eos_token=AddedToken("<eos>", special=True),
        pad_token=AddedToken("<pad>", special=True),
    )
    FAMILIES[name]().save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
    return folder / name


def weights(name: str, seed: int = 3) -> dict[str, torch.Tensor]:
    """Return random weights, tied weights once; also biases, which are 0 in a new model."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(FAMILIES[name]())
    return {
        key: weight.detach() + (0.3 * torch.randn_like(weight) if key.endswith("bias") else 0)
        for key, weight in model.named_parameters()
    }


def parts(name: str, seed: int, rank: int) -> Iterator[WeightSlice]:
    """Return the weight slices that a process fetches for this seed."""
    for key, tensor in weights(name, seed).items():
        ranges = shard_extent(key, tensor.shape, ModelShard(rank, 2))
        if len(ranges[0]):
            start = tuple(part.start for part in ranges)
            yield WeightSlice(key, tuple(tensor.shape), start, shard_tensor(key, tensor, ModelShard(rank, 2)))


class Parts:
    """Slices that the first process has fetched. The weight version stands for their seed."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self.announcement = refit_pb2.WeightsAnnouncement(weights=batch_pb2.WeightsId(version=seed))

    def slices(self) -> Iterator[WeightSlice]:
        return parts(self._name, self.announcement.weights.version, 0)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((part.name, part.tensor) for part in self.slices())


def fetch(name: str, passes: ShardedModelRunner, announcement: bytes) -> None:
    """Fetch the second process's slices; the fetch fails for one seed."""
    seed = refit_pb2.WeightsAnnouncement.FromString(announcement).weights.version
    if seed == OUT_OF_REACH:
        raise ConnectionError("no way to the trainer")
    passes.load_own_slices(parts(name, seed, 1))


def follower(rendezvous: str, folders: list[Path]) -> None:
    """Run the second process: one model after the other."""
    torch.set_num_threads(1)
    store = join_process_group(1, 2, rendezvous, MEETING)
    for folder in folders:
        following, passes = create_worker_runner(folder, SPEC, 1, dist.PrefixStore(folder.name, store))
        run_worker(following, passes, functools.partial(fetch, folder.name, passes))
    dist.destroy_process_group()


@dataclass
class Pair:
    """Engines whose passes the second process executes too: one model at a time, in the order of FAMILIES."""

    root: Path
    store: dist.Store
    process: mp.process.BaseProcess
    losses: list[ProcessesLost] = field(default_factory=list)

    def engine(self, name: str) -> tuple[TorchRolloutEngine, Callable[[], None]]:
        """Return the engine with the family's weights, and its shutdown function."""
        store = dist.PrefixStore(name, self.store)
        engine, end = create_leader_engine(self.root / name, SPEC, store, self.losses.append)
        engine.refit(weights(name).items(), version=1)
        return engine, end


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("models")
    folders = [write_model(root, name) for name in FAMILIES]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rendezvous = free_address()
    process = mp.get_context("spawn").Process(target=follower, args=(rendezvous, folders))
    process.start()
    try:
        yield Pair(root, join_process_group(0, 2, rendezvous, MEETING), process)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        process.kill()
        process.join(30)
        torch.set_num_threads(threads)


def run_all(
    engine: TorchRolloutEngine, *requests: GenerationRequest
) -> dict[tuple[str, int], GeneratedSample]:
    for request in requests:
        engine.add(request)
    done: dict[tuple[str, int], GeneratedSample] = {}
    for _ in range(500):
        if not (engine.load().running or engine.load().waiting):
            return done
        done |= {(each.request_id, each.sample): each for each in engine.step()}
    raise AssertionError(f"not idle after 500 steps: {engine.load()}")


def same(one: TorchRolloutEngine, two: TorchRolloutEngine) -> None:
    """Check that both engines give equal samples, greedy and sampled. The requests cover more samples than
    slots, cached prompts, rows that move, and commands longer than one broadcast."""
    requests = [
        # Longer samples occupy the last slots, so the waiting samples of the next request get slots that had
        # another prompt before.
        GenerationRequest("brief", (9,) * 7, (2, 3), SamplingParameters(2)),
        GenerationRequest("held", (1, 2, 3), tuple(range(9)), SamplingParameters(9)),
        GenerationRequest("greedy", (4, 5, 64), (1,), SamplingParameters(12, temperature=0)),
        GenerationRequest(
            "cut", (9,) * 7, (2, 3), SamplingParameters(8, temperature=0.7, top_k=9, top_p=0.9)
        ),
        *(
            GenerationRequest(f"long-{i}", tuple(i + j % 40 for j in range(150)), (i,), SamplingParameters(3))
            for i in range(5)
        ),
    ]
    expected, actual = run_all(one, *requests), run_all(two, *requests)
    assert len(actual) == 19
    for key, sample in expected.items():
        assert actual[key].tokens == sample.tokens, key
        assert actual[key].engine_logprobs == pytest.approx(sample.engine_logprobs, abs=1e-5)
        assert actual[key].behaviour_logprobs == pytest.approx(sample.behaviour_logprobs, abs=1e-5)
    assert two.sequence_logprobs(SEQUENCE) == pytest.approx(one.sequence_logprobs(SEQUENCE), abs=1e-5)


def alone(pair: Pair, name: str) -> TorchRolloutEngine:
    engine = TorchRolloutEngine.create(pair.root / name, SPEC)
    engine.refit(weights(name).items(), version=1)
    return engine


def adapter(name: str, dora: bool) -> list[tuple[str, torch.Tensor]]:
    """Return an adapter of the projections into and out of heads and MLP."""
    generator = torch.Generator().manual_seed(5)
    draw = functools.partial(torch.randn, generator=generator)
    named: list[tuple[str, torch.Tensor]] = []
    for key, weight in weights(name).items():
        layer = key.removesuffix(".weight")
        if layer.endswith(("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")) and key != layer:
            outputs, inputs = weight.shape
            magnitude = 1 + draw(outputs).abs() if dora else None
            named += LowRankAdapter(0.3 * draw(2, inputs), 0.3 * draw(outputs, 2), magnitude).named_tensors(
                layer
            )
    return named


def test_sharded_model_generates_like_the_full_model(pair: Pair) -> None:
    for name in FAMILIES:
        if name == "mistral":
            break
        one, (two, end) = alone(pair, name), pair.engine(name)
        same(one, two)
        assert two.load().running == 0
        if name == "llama":
            with pytest.raises(ValueError, match=r"'model.norm.weight' has the shape \[31\]"):
                two.refit((weights(name) | {"model.norm.weight": torch.ones(31)}).items(), version=2)
            with pytest.raises(RuntimeError, match="no usable weights"):
                two.sequence_logprobs(SEQUENCE)
            for engine in (one, two):
                engine.refit(weights(name, seed=8).items(), version=2)
            same(one, two)
        if name == "llama-tied":
            for dora in (False, True):
                for engine in (one, two):
                    engine.adapt(adapter(name, dora), 2.0, version=2)
                same(one, two)
        if name == "qwen2":
            with pytest.raises(PartsMissing, match="process 1: ConnectionError: no way to the trainer"):
                two.refit(Parts(name, OUT_OF_REACH), version=2)
            with pytest.raises(RuntimeError, match="no usable weights"):
                two.sequence_logprobs(SEQUENCE)
            with pytest.raises(ValueError, match=r"self_attn.q_proj.weight' has the shape \[64, 32\]"):
                two.refit(Parts("qwen3", 4), version=2)
            one.refit(weights(name, seed=4).items(), version=2)
            two.refit(Parts(name, 4), version=2)
            same(one, two)
        end()
    assert pair.losses == []


def test_lost_process_ends_the_others(pair: Pair) -> None:
    one, (two, _) = alone(pair, "mistral"), pair.engine("mistral")
    same(one, two)
    assert pair.process.pid is not None
    os.kill(pair.process.pid, 9)
    pair.process.join(30)
    with pytest.raises(ProcessesLost, match="cannot go on together"):
        two.sequence_logprobs(SEQUENCE)
    assert len(pair.losses) == 1
    with pytest.raises(ProcessesLost):
        two.refit(weights("mistral").items(), version=2)
    assert len(pair.losses) == 1
