"""Models that two ranks share, each with a shard of the weights, compute what an unsharded model does; a rank
that hangs ends the replica at a deadline."""

import asyncio
import contextlib
import multiprocessing as mp
import os
import signal
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.precision import Precision
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.scoring.replica_ranks import ReplicaModel, ReplicaRanks, open_replica
from kubealign_services.training.commands.rank_group import RankFailed
from kubealign_services.training.contract import Head, ScoringBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from kubealign_services.training.torch_backend.model.fsdp import local_shard
from support.bad_specs import whole_job
from support.free_address import free_address
from support.scorer_context import scorer_context
from support.tiny_frozen_model import VOCABULARY, save_tiny_model
from support.tiny_rewards import reward_folder

pytestmark = pytest.mark.timeout(180)

#: More sequences than fit in one microbatch of eight tokens; the last batch leaves one rank idle.
SEQUENCES = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11, 2, 3], [3, 1, 4], [5, 9, 2, 6]]
BATCHES = [SEQUENCES, SEQUENCES[:1]]
MICROBATCH_TOKENS = 8
#: Deadline of the ranks, after their imports.
TIMEOUT = 15.0


def batches() -> Iterator[Batch]:
    for sequences in BATCHES:
        batch = pack(sequences, [f"{index}/0" for index in range(len(sequences))])
        batch.token_columns["loss_mask"] = (batch.positions >= 1).to(torch.uint8)
        set_temperatures(batch, [0.7 + 0.2 * index for index in range(len(sequences))])
        yield batch


def outputs(policy: ScoringBackend, reward: ScoringBackend) -> list[Tensor]:
    """Return the log-probabilities, the most likely tokens and the scores of all batches."""
    tensors = []
    for batch in batches():
        tensors += policy.topk_logprobs(batch, 3, VOCABULARY - 2)
        tensors.append(policy.forward(batch, frozenset({"logprobs"}))["logprobs"])
        tensors.append(reward.forward(batch, frozenset({"values"}))["values"])
    return tensors


def rank_context(folder: Path, rank: int, rendezvous: str, precision: Precision) -> ProcessContext:
    trainer = {"backend": {"torch": {"precision": precision}}, "stepTimeoutSeconds": TIMEOUT}
    job = AlignmentJob.model_validate(whole_job("rloo", {"spec.trainer": trainer}))
    context = scorer_context(f"reference-0-r{rank}", job)
    tls = SimpleNamespace(key=folder / "reference-key.pem")
    context.settings = SimpleNamespace(  # type: ignore[assignment]
        rank=rank, world_size=2, rendezvous=rendezvous, tls=tls
    )
    return context


def load_models(ranks: ReplicaRanks, folder: Path) -> tuple[ScoringBackend, ScoringBackend]:
    return (
        ranks.load(folder / "policy", Head.LANGUAGE_MODEL, MICROBATCH_TOKENS),
        ranks.load(folder / "reward", Head.SCORE, MICROBATCH_TOKENS),
    )


async def follow(folder: Path, context: ProcessContext) -> None:
    async with open_replica(context) as ranks:
        load_models(ranks, folder)
        assert ranks.is_follower
        await ranks.follow()


def run_second_rank(folder: Path, rendezvous: str, precision: Precision, started: Event) -> None:
    torch.set_num_threads(1)
    started.set()
    asyncio.run(follow(folder, rank_context(folder, 1, rendezvous, precision)))


@contextlib.contextmanager
def second_rank(folder: Path, rendezvous: str, precision: Precision) -> Iterator[mp.process.BaseProcess]:
    """Run rank 1 in a process; return once its imports are done."""
    spawn = mp.get_context("spawn")
    started = spawn.Event()
    process = spawn.Process(target=run_second_rank, args=(folder, rendezvous, precision, started))
    process.start()
    try:
        assert started.wait(60)
        yield process
    finally:
        process.kill()
        process.join(10)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [(Precision.FLOAT32, 1e-5), pytest.param(Precision.BFLOAT16, 5e-2, marks=pytest.mark.full)],
)
async def test_two_ranks_compute_the_outputs_of_one_until_one_hangs(
    precision: Precision, tolerance: float, tmp_path: Path
) -> None:
    """Rank 1 hangs by SIGSTOP, which leaves its connections open."""
    save_tiny_model(tmp_path / "policy")
    reward_folder(tmp_path / "reward", "abcdefghijklmnopqrst", ("first", "second"))
    expected = outputs(
        FrozenTorchModel.load(tmp_path / "policy", Head.LANGUAGE_MODEL, precision, MICROBATCH_TOKENS),
        FrozenTorchModel.load(tmp_path / "reward", Head.SCORE, precision, MICROBATCH_TOKENS),
    )
    rendezvous = free_address()
    (tmp_path / "reference-key.pem").write_text("the private key that the ranks share")
    context = rank_context(tmp_path, 0, rendezvous, precision)
    with (
        second_rank(tmp_path, rendezvous, precision) as other,
        pytest.raises(RankFailed, match=r"rank 1 did not answer Forward/0 within 15 s"),
    ):
        async with open_replica(context) as ranks:
            policy, reward = load_models(ranks, tmp_path)
            actual = outputs(policy, reward)
            assert reward.scores == ("first", "second")
            check_shards(policy, reward)
            assert other.pid is not None
            os.kill(other.pid, signal.SIGSTOP)
            with pytest.raises(Unreachable, match="rank 1 did not answer"):
                policy.forward(next(batches()), frozenset({"logprobs"}))
            await asyncio.wait_for(ranks.wait_for_failure(), 5)
    for output, unsharded in zip(actual, expected, strict=True):
        torch.testing.assert_close(output, unsharded, atol=tolerance, rtol=tolerance)


def check_shards(*models: ScoringBackend) -> None:
    """Check that rank 0 holds half of the weights, also after a pass."""
    for model in models:
        assert isinstance(model, ReplicaModel)
        weights = list(model._shard._model.parameters())
        assert all(isinstance(weight, DTensor) for weight in weights), "resharded after each pass"
        share = sum(local_shard(weight).numel() for weight in weights) / sum(each.numel() for each in weights)
        assert share == pytest.approx(0.5, abs=0.05)
