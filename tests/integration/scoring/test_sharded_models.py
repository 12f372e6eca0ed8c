"""Models that two ranks share, each with a shard of the weights, compute what an unsharded model does."""

import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from kubealign.spec.sections.precision import Precision
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.runtime.process.rank_rendezvous import join_process_group
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from kubealign_services.training.torch_backend.model.fsdp import local_shard
from support.free_address import free_address
from support.tiny_frozen_model import VOCABULARY, save_tiny_model
from support.tiny_rewards import reward_folder

pytestmark = pytest.mark.timeout(120)

#: More sequences than fit in one microbatch of eight tokens; the last batch leaves one rank idle.
SEQUENCES = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 2, 3], [3, 1, 4], [5, 9, 2, 6]]
BATCHES = [SEQUENCES, SEQUENCES[:1]]


def batches() -> Iterator[Batch]:
    for sequences in BATCHES:
        batch = pack(sequences, [f"{index}/0" for index in range(len(sequences))])
        batch.token_columns["loss_mask"] = (batch.positions >= 1).to(torch.uint8)
        set_temperatures(batch, [0.7 + 0.2 * index for index in range(len(sequences))])
        yield batch


def language_outputs(model: FrozenTorchModel) -> list[torch.Tensor]:
    outputs = []
    for batch in batches():
        tokens, logprobs = model.topk_logprobs(batch, 3, VOCABULARY - 2)
        outputs += [model.forward(batch, frozenset({"logprobs"}))["logprobs"], tokens, logprobs]
    return outputs


def reward_outputs(model: FrozenTorchModel) -> list[torch.Tensor]:
    return [model.forward(batch, frozenset({"values"}))["values"] for batch in batches()]


def outputs_of_rank(folder: Path, rank: int, rendezvous: str, precision: Precision) -> list[torch.Tensor]:
    """Return the outputs of both models on one of two ranks; check that it holds half of the weights."""
    torch.set_num_threads(1)
    join_process_group(rank, 2, rendezvous, 60)
    policy = FrozenTorchModel.load(folder / "policy", Head.LANGUAGE_MODEL, precision, 8, rank, 2)
    reward = FrozenTorchModel.load(folder / "reward", Head.SCORE, precision, 8, rank, 2)
    outputs = [*language_outputs(policy), *reward_outputs(reward)]
    for model in (policy, reward):
        weights = list(model._model.parameters())
        assert all(isinstance(weight, DTensor) for weight in weights), "resharded after each pass"
        share = sum(local_shard(weight).numel() for weight in weights) / sum(w.numel() for w in weights)
        assert share == pytest.approx(0.5, abs=0.05)
    dist.destroy_process_group()
    return outputs


def run_second_rank(folder: Path, rendezvous: str, precision: Precision) -> None:
    torch.save(outputs_of_rank(folder, 1, rendezvous, precision), folder / "second.pt")


@contextmanager
def second_rank(folder: Path, rendezvous: str, precision: Precision) -> Iterator[None]:
    process = mp.get_context("spawn").Process(target=run_second_rank, args=(folder, rendezvous, precision))
    process.start()
    try:
        yield
        process.join(60)
        assert process.exitcode == 0
    finally:
        if process.is_alive():
            process.kill()
        process.join(10)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [(Precision.FLOAT32, 1e-5), pytest.param(Precision.BFLOAT16, 5e-2, marks=pytest.mark.full)],
)
def test_two_ranks_compute_the_outputs_of_one(precision: Precision, tolerance: float, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "policy")
    reward_folder(tmp_path / "reward", "abcdefghijklmnopqrst", ("first", "second"))
    expected = language_outputs(FrozenTorchModel.load(tmp_path / "policy", Head.LANGUAGE_MODEL, precision, 8))
    rewards = reward_outputs(FrozenTorchModel.load(tmp_path / "reward", Head.SCORE, precision, 8))
    rendezvous = free_address()
    with second_rank(tmp_path, rendezvous, precision):
        actual = outputs_of_rank(tmp_path, 0, rendezvous, precision)
    for output, unsharded in zip(actual, [*expected, *rewards], strict=True):
        torch.testing.assert_close(output, unsharded, atol=tolerance, rtol=tolerance)
    for output, other in zip(actual, torch.load(tmp_path / "second.pt"), strict=True):
        assert torch.equal(output, other), "the same on both ranks"
