"""Optimisers on two FSDP2 ranks: the weights of one rank for the same gradients, and an exact restart."""

# mypy: disable-error-code="no-untyped-call"
import multiprocessing as mp
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bitsandbytes.optim import AdamW8bit
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig

from kubealign.spec.sections.training import Optimizer, Trainer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.model.fsdp import full_tensor, local_shard
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.optimizer import step_optimizer

pytestmark = pytest.mark.timeout(240)

STEPS, SAVED_AFTER = 5, 3
ADAMW: dict[str, Any] = {"learningRate": 3e-3, "weightDecay": 0.1}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"adamW": ADAMW},
    "muon": {"adamW": ADAMW, "muon": {"learningRate": 0.02, "weightDecay": 0.1}},
    "host": {"adamW": ADAMW, "device": "Host"},
    "muon on host": {"adamW": ADAMW, "muon": {"learningRate": 0.02, "weightDecay": 0.1}, "device": "Host"},
    "blockwise": {"adamW": {**ADAMW, "states": "Blockwise8Bit"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose vocabulary of 101 and key width of 48 do not divide into equal shards of whole blocks."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=101, hidden_size=72, intermediate_size=99, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    path: Path = tmp_path_factory.mktemp("models") / "llama"
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def gradient(name: str, shape: torch.Size, step: int) -> Tensor:
    """Return the gradient of a whole weight, the same on all ranks."""
    generator = torch.Generator().manual_seed(step * 1000 + sum(name.encode()))
    return torch.randn(shape, generator=generator)


def rows_of(tensor: Tensor, rank: int, world_size: int) -> Tensor:
    """Return a rank's rows as FSDP2 divides them: equal chunks, of which the last may be smaller or empty."""
    chunks = tensor.chunk(world_size)
    return chunks[rank] if rank < len(chunks) else tensor[:0]


def create(folder: Path, spec: Trainer, rank: int, world_size: int) -> TorchTrainingBackend:
    return TorchTrainingBackend.create(
        folder, Head.SCORE, spec, total_updates=20, rank=rank, world_size=world_size
    )


def take_steps(backend: TorchTrainingBackend, spec: Trainer, rank: int, ranks: int, steps: range) -> None:
    for step in steps:
        for name, parameter in backend.model.named_parameters():
            full = gradient(name, parameter.shape, step)
            if isinstance(parameter, DTensor):
                parameter.grad = DTensor.from_local(
                    rows_of(full, rank, ranks), parameter.device_mesh, parameter.placements, run_check=False,
                    shape=parameter.shape, stride=parameter.stride(),
                )  # fmt: skip
            else:
                parameter.grad = full
        step_optimizer(backend._optimizer, spec.optimizer, step, 20)


def train(folder: Path, spec: Trainer, rank: int, ranks: int, work: Path) -> None:
    """Train, save on the way, train again from the checkpoint; rank 0 writes the weights of both."""
    backend = create(folder, spec, rank, ranks)
    take_steps(backend, spec, rank, ranks, range(SAVED_AFTER))
    backend.save(work)
    take_steps(backend, spec, rank, ranks, range(SAVED_AFTER, STEPS))
    again = create(folder, spec, rank, ranks)
    again.load(work)
    take_steps(again, spec, rank, ranks, range(SAVED_AFTER, STEPS))
    for name, each in (("straight", backend), ("resumed", again)):
        weights = {key: full_tensor(tensor.detach()) for key, tensor in each.model.named_parameters()}
        if rank == 0:
            save_file(weights, work / name)
    for (name, one), other in zip(backend.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(local_shard(one), local_shard(other)), name
        for key, tensor in backend._optimizer.saved_state(one).items():
            assert torch.equal(tensor, again._optimizer.saved_state(other)[key]), (name, key)


def follow(folder: Path, spec: str, rank: int, ranks: int, meeting: str, work: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    train(folder, Trainer.model_validate_json(spec), rank, ranks, work)
    dist.destroy_process_group()


def run(folder: Path, optimizer: dict[str, Any], ranks: int, work: Path) -> dict[str, Tensor]:
    """Train on new processes, one for each rank. Returns the weights, which are those of the resumed run."""
    work.mkdir()
    spec = Trainer(ranks=ranks, optimizer=Optimizer.model_validate(optimizer)).model_dump_json(by_alias=True)
    context = mp.get_context("spawn")
    processes = [
        context.Process(target=follow, args=(folder, spec, rank, ranks, str(work / "meeting"), work))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(200)
        assert [process.exitcode for process in processes] == [0] * ranks
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(10)
    weights, resumed = load_file(work / "straight"), load_file(work / "resumed")
    for name, tensor in weights.items():
        assert torch.equal(tensor, resumed[name]), name
    return weights


@pytest.mark.parametrize(
    "name",
    ["muon", "host", *(pytest.param(each, marks=pytest.mark.full) for each in ("muon on host", "adamw"))],
)
def test_two_ranks_equal_one(name: str, folder: Path, tmp_path: Path) -> None:
    """Bit for bit: each rank orthogonalises whole matrices, and the rest is element by element.

    The host's fused AdamW rounds the last elements of a tensor otherwise, which are others in a shard.
    """
    two = run(folder, OPTIMIZERS[name], 2, tmp_path / "two")
    torch.set_num_threads(1)
    (tmp_path / "one").mkdir()
    spec = Trainer(optimizer=Optimizer.model_validate(OPTIMIZERS[name]))
    train(folder, spec, 0, 1, tmp_path / "one")
    one = load_file(tmp_path / "one" / "straight")
    assert one.keys() == two.keys()
    for key, expected in one.items():
        if "device" in OPTIMIZERS[name]:
            torch.testing.assert_close(two[key], expected, atol=2e-6, rtol=1e-5, msg=key)
        else:
            assert torch.equal(two[key], expected), key


def test_the_blocks_of_two_ranks_are_those_of_their_rows(folder: Path, tmp_path: Path) -> None:
    """Bit for bit bitsandbytes' own optimizer over each rank's rows, and close to one over whole weights."""
    two = run(folder, OPTIMIZERS["blockwise"], 2, tmp_path / "two")
    initial = dict(load_model(folder, Head.SCORE).named_parameters())
    embedding = "backbone.model.embed_tokens.weight"
    compared = 0
    for name, start in initial.items():
        decay = 0.1 if start.dim() > 1 else 0.0
        if name.endswith("score.weight"):
            continue
        shards = [rows_of(start.detach(), rank, 2).clone() for rank in range(2)]
        unsharded = start.detach().clone()
        is_8bit = start.numel() >= 4096 and name != embedding
        reference = AdamW8bit if is_8bit else torch.optim.AdamW
        arguments = {"min_8bit_size": 0} if is_8bit else {}
        optimizer = reference(
            [*shards, unsharded], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay, **arguments
        )
        for step in range(STEPS):
            full = gradient(name, start.shape, step)
            unsharded.grad = full.clone()
            for rank, shard in enumerate(shards):
                shard.grad = rows_of(full, rank, 2).clone()
            optimizer.step()
        assert torch.equal(two[name], torch.cat(shards)), name
        # Blocks that begin elsewhere have other scales.
        torch.testing.assert_close(two[name], unsharded, atol=3e-3, rtol=0)
        compared += is_8bit
    assert compared == 11  # queries, outputs and the MLP of two layers, and the head
