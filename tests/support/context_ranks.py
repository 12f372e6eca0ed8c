"""Ranks of one model that share the tokens of their packs, and the one-rank run that they are compared with.

`run_rank` runs one rank through all cases, in float64; the results of each case are then in a folder.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.sections.training import Backend, HeadInit, TorchBackendSpec
from kubealign_services.batch.packed import Batch
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.context_parallel.context_group import join_context_group
from kubealign_services.training.torch_backend.context_parallel.selfcheck import check_context_parallel
from kubealign_services.training.torch_backend.model.fsdp import full_tensor, local_shard, reshard
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens
from kubealign_services.training.torch_backend.packing.packed_attention import UnsupportedTrainingModel
from kubealign_services.training.torch_backend.passes.microbatch_passes import (
    RankContext,
    pack_inputs,
    run_objective,
)
from kubealign_services.training.torch_backend.passes.topk_logprobs import run_topk_logprobs
from support.command_key import COMMAND_KEY
from support.training_contract import VOCABULARY, batch_of, objectives, trainer

#: Token limit of a pack of the whole context group.
PACK_TOKENS = 24
STEPS = 3
LONGEST = 64


@dataclass(frozen=True)
class Case:
    """A model, its head, and the objective that trains it.

    Attributes:
        model: Name of the model's folder.
        objective: Name among `training_contract.objectives`.
        outputs: Columns that are compared.
    """

    model: str
    head: Head = Head.LANGUAGE_MODEL
    objective: str = "ppo"
    outputs: tuple[str, ...] = ("logprobs", "entropy", "collision", "candidate_logprobs")
    scores: tuple[str, ...] = ()
    head_init: HeadInit = HeadInit.ZERO
    gradient_checkpointing: bool = False


CASES = {
    "llama": Case("llama"),
    "one kv head": Case("one-kv-head"),
    "gemma2": Case("gemma2"),
    "gradient checkpointing": Case("llama", gradient_checkpointing=True),
    "values": Case("reward", Head.VALUE, "value", ("values",), head_init=HeadInit.REWARD_MODEL),
    "scores": Case("llama", Head.SCORE, "sft", ("values", "logprobs"), ("helpful", "right")),
    "scores of gemma2": Case("gemma2", Head.SCORE, "sft", ("values",)),
}


@dataclass(frozen=True)
class ContextSetup:
    """Setup of one rank: its position, the folder of the models, and its output folder."""

    rank: int
    world_size: int
    context_parallel: int
    rendezvous: str | None
    models: Path
    work: Path


def run_rank(setup: ContextSetup) -> None:
    """Run all cases on a rank."""
    torch.set_num_threads(1)
    handlers: Handlers = {
        "case": lambda name: _run_case(setup, name.decode()),
        "bytes": lambda _: _saved_bytes(setup),
        "dropout": lambda _: _train_with_dropout(setup),
        "refusal": lambda _: _check_a_leaking_model(setup),
    }
    with CommandGroup(setup.rank, setup.world_size, setup.rendezvous, 60, COMMAND_KEY) as group:
        if setup.rank:
            group.follow(handlers)
            return
        for name in CASES:
            group.run("case", name.encode(), handlers)
        for command in ("bytes", "dropout", *(("refusal",) if setup.context_parallel > 1 else ())):
            group.run(command, b"", handlers)


def check_model_types(rank: int, rendezvous: str, models: Path, work: Path) -> None:
    """Check that two ranks can share the tokens of each model of a folder.

    Writes the error of each model type, empty for none, to a file of the rank.
    """
    torch.set_num_threads(1)
    errors: dict[str, str] = {}

    def check_all(_: bytes) -> bytes:
        group = join_context_group(2, 2, 60)
        assert group is not None
        for folder in sorted(models.iterdir()):
            try:
                check_context_parallel(load_model(folder, Head.LANGUAGE_MODEL), group, 2)
                errors[folder.name] = ""
            except (RuntimeError, ValueError, TypeError) as error:
                errors[folder.name] = repr(error)
        return b""

    with CommandGroup(rank, 2, rendezvous, 60, COMMAND_KEY) as group:
        if rank:
            group.follow({"all": check_all})
        else:
            group.run("all", b"", {"all": check_all})
    (work / f"types-{rank}.json").write_text(json.dumps(errors))


def shared_batch() -> Batch:
    """Return the fourth batch with one prompt of five tokens in all but the last sequence."""
    batch = batch_of(3)
    for start, end in zip(batch.cu_seqlens[:-2].tolist(), batch.cu_seqlens[1:-1].tolist(), strict=True):
        batch.tokens[start : start + 5] = torch.tensor([3, 1, 4, 1, 5], dtype=batch.tokens.dtype)
        mask = torch.arange(end - start) >= 5
        batch.token_columns["loss_mask"][start:end] = mask.to(torch.uint8)
    return batch


def _create(setup: ContextSetup, case: Case, pack_tokens: int) -> tuple[TorchTrainingBackend, RankContext]:
    spec = trainer(
        Backend(
            torch=TorchBackendSpec(
                microbatch_tokens=pack_tokens // setup.context_parallel,
                gradient_checkpointing=case.gradient_checkpointing,
                context_parallel=setup.context_parallel,
            )
        ),
        setup.world_size,
    )
    backend = TorchTrainingBackend.create(
        setup.models / case.model,
        case.head,
        spec,
        STEPS,
        rank=setup.rank,
        world_size=setup.world_size,
        seed=5,
        head_init=case.head_init,
        scores=case.scores,
    )
    backend.model.double()
    return backend, backend._context


def _run_case(setup: ContextSetup, name: str) -> bytes:
    """Compute all outputs, the gradient of one minibatch, and three optimiser steps."""
    case = CASES[name]
    backend, context = _create(setup, case, PACK_TOKENS)
    objective = objectives()[case.objective]
    tensors: dict[str, Tensor] = {}
    metrics: dict[str, Any] = {}
    for title, batch in (("plain", batch_of(3)), ("short", batch_of(4)), ("shared", shared_batch())):
        for output, column in backend.forward(batch, frozenset(case.outputs)).items():
            tensors[f"{title}.{output}"] = column
        if "logprobs" in case.outputs:
            top = run_topk_logprobs(backend.model, batch, 3, VOCABULARY - 2, context)
            reshard(backend.model)
            tensors[f"{title}.top_tokens"], tensors[f"{title}.top_logprobs"] = top
    metrics["evaluated"] = backend.evaluate(batch_of(2), objective)
    batch = shared_batch()
    objective.prepare(batch)
    backend.model.train()
    passes = run_objective(backend.model, batch, objective, context)
    metrics["passes"] = {"loss": passes.loss, **passes.sums, **passes.maxima}
    for parameter_name, parameter in backend.model.named_parameters():
        if parameter.grad is not None:
            tensors[f"gradient.{parameter_name}"] = full_tensor(parameter.grad)
            parameter.grad = None
    plan = UpdatePlan(1, 3, seed=1)
    metrics["steps"] = [backend.train_step(batch_of(step), objective, plan) for step in (0, 1, 4)]
    for parameter_name, parameter in backend.model.named_parameters():
        tensors[f"weight.{parameter_name}"] = full_tensor(parameter.detach())
    if setup.rank == 0:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, setup.work / name)
        (setup.work / f"{name}.json").write_text(json.dumps(metrics))
    return b""


def _saved_bytes(setup: ContextSetup) -> bytes:
    """Write the bytes that autograd saves in the forward pass of one sequence, on every rank."""
    backend, context = _create(setup, CASES["llama"], LONGEST)
    batch = batch_of(0).select([0])
    reps = torch.arange(LONGEST) % len(batch.tokens)
    batch.tokens, batch.cu_seqlens = batch.tokens[reps], torch.tensor([0, LONGEST], dtype=torch.int32)
    batch.token_columns = {"loss_mask": torch.ones(LONGEST, dtype=torch.uint8)}
    backend.model.train()
    with _saved_tensors() as saved:
        columns = backend.model(pack_inputs(backend.model, batch, context), frozenset({"logprobs"}))
    weights = {local_shard(each.detach()).untyped_storage()._cdata for each in backend.model.parameters()}
    sizes = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in saved}
    assert columns["logprobs"].requires_grad
    total = sum(size for storage, size in sizes.items() if storage not in weights)
    (setup.work / f"bytes-{setup.rank}").write_text(str(total))
    return b""


def _train_with_dropout(setup: ContextSetup) -> bytes:
    """Train with dropout, of which each rank draws its own, also where layers are recomputed."""
    backend, _ = _create(setup, Case("gpt2", gradient_checkpointing=True), PACK_TOKENS)
    metrics = backend.train_step(batch_of(0), objectives()["sft"], UpdatePlan(1, 6, seed=1))
    if setup.rank == 0:
        (setup.work / "dropout.json").write_text(json.dumps(metrics))
    return b""


def _check_a_leaking_model(setup: ContextSetup) -> bytes:
    """Write each rank's error of a model whose states are wrong on the last rank of a context group."""
    group = join_context_group(setup.context_parallel, setup.world_size, 60)
    assert group is not None
    model = load_model(setup.models / "llama", Head.LANGUAGE_MODEL)
    unpatched = model.hidden

    def leaking(packed: PackedTokens) -> Tensor:
        states = unpatched(packed)
        is_wrong = packed.token_slice is not None and group.index == group.size - 1
        return states + 0.1 if is_wrong else states

    check_context_parallel(model, group, setup.world_size)
    model.hidden = leaking  # type: ignore[method-assign]
    try:
        check_context_parallel(model, group, setup.world_size)
    except UnsupportedTrainingModel as error:
        (setup.work / f"refusal-{setup.rank}").write_text(str(error))
    return b""


@contextmanager
def _saved_tensors() -> Iterator[list[Tensor]]:
    """Provide the list of the tensors that autograd saves meanwhile."""
    saved: list[Tensor] = []

    def record(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        yield saved
