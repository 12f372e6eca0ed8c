"""Contract test of training backends: any backend, in any layout, gives the same results.

`run_rank` runs one rank, whose results are then in a folder. Real groups, real processes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kubealign.spec import algorithms
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    LearningRateSchedule,
    LinearSchedule,
    Lora,
    Optimizer,
    Trainer,
)
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective
from kubealign_services.algorithms.online.ppo import PPOAlgorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.training.backends import create_backend, load_frozen
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.contract import Head, NonFiniteLoss, TrainingBackend, UpdatePlan
from support.batches import random_batch
from support.command_key import COMMAND_KEY

VOCABULARY = 41
STEPS = 10
PPO_SPEC = algorithms.PPOSpec(prompts_per_step=6, samples_per_prompt=1, entropy_coefficient=0.01)
# Packs have 24 tokens; the last batch has one sequence, so that some data-parallel ranks have none.
RESPONSES = [[5, 9, 1, 12, 7, 20], [3, 3, 3, 17, 2, 8], [21, 1, 4, 6, 5, 2], [8] * 6, [6]]


@dataclass(frozen=True)
class RankSetup:
    """Setup of one rank: the source of its model, its output folder, and its scenarios."""

    rank: int
    world_size: int
    rendezvous: str | None
    folder: Path
    work: Path
    spec: Trainer
    scenarios: tuple[str, ...]
    elsewhere: Path | None = None


def trainer(backend: Backend, ranks: int, lora: Lora | None = None) -> Trainer:
    """Return the trainer's spec. Its epsilon is large enough that a gradient of rounding errors changes
    nothing.
    """
    return Trainer(
        ranks=ranks,
        backend=backend,
        optimizer=Optimizer(
            adam_w=AdamW(learning_rate=5e-3, weight_decay=0.1, epsilon=1e-6),
            schedule=LearningRateSchedule(linear=LinearSchedule(warmup_steps=2)),
            gradient_clip_norm=1.0,
        ),
        lora=lora,
        step_timeout_seconds=60.0,
    )


def batch_of(step: int) -> Batch:
    """Return random tokens with every column that the objectives read; the second batch at another
    temperature, the sequences of the fourth batch at different temperatures.
    """
    responses = RESPONSES[step % len(RESPONSES)]
    generator = torch.Generator().manual_seed(step)
    batch = random_batch(responses, list(range(len(responses))), seed=step)
    length = len(batch.tokens)
    batch.tokens = torch.randint(0, VOCABULARY, (length,), generator=generator, dtype=batch.tokens.dtype)
    for name in ("advantages", "returns", "old_values"):
        batch.token_columns[name] = torch.randn(length, generator=generator)
    batch.token_columns["candidates"] = torch.randint(0, VOCABULARY, (length, 3), generator=generator)
    for name in ("old_logprobs", "behaviour_logprobs", "reference_logprobs"):
        batch.token_columns[name] = (batch.token_columns[name] - 3.0).float()
    if step == 1:
        batch.scalars["temperature"] = 0.7
    if step == 3:
        set_temperatures(batch, [0.7, 1.3, 1.0, 0.7, 2.0, 1.0])
    return batch


class Poison:
    """A loss that is infinite in one of the microbatches."""

    outputs = frozenset({"logprobs"})
    unit = 1

    def prepare(self, minibatch: Batch) -> None:
        """Add no columns."""

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        assert outputs.logprobs is not None
        factor = float("inf") if "0" in microbatch.sample_ids else 1.0
        return LossTerms(outputs.logprobs.sum() * factor)


def objectives() -> dict[str, Objective]:
    ppo = PPOAlgorithm(PPO_SPEC)
    value = ppo.value_objective()
    return {"sft": CrossEntropyObjective(), "ppo": ppo.policy_objective(), "value": value, "poison": Poison()}


@dataclass
class Rank:
    """Commands of a rank; all ranks of a group have the same."""

    setup: RankSetup
    objectives: dict[str, Objective] = field(default_factory=objectives)
    backends: list[TrainingBackend] = field(default_factory=list)

    @property
    def backend(self) -> TrainingBackend:
        return self.backends[0]

    def handlers(self) -> Handlers:
        def command(run: Callable[..., Any]) -> Callable[[bytes], bytes]:
            return lambda payload: json.dumps(run(**json.loads(payload))).encode()

        commands = (
            self.create,
            self.steps,
            self.evaluate,
            self.columns,
            self.weights,
            self.slices,
            self.adapter,
        )
        others = (self.frozen, self.save, self.load, self.export)
        return {run.__name__: command(run) for run in (*commands, *others)}

    def create(self, head: str, lora: bool = False) -> None:
        setup = self.setup
        spec = setup.spec.model_copy(update={"lora": Lora(rank=3, alpha=12) if lora else None})
        self.backends[:] = [
            create_backend(
                setup.folder, Head(head), spec, STEPS, rank=setup.rank, world_size=setup.world_size, seed=5
            )
        ]

    def steps(self, objective: str, first: int, count: int, minibatch: int = 6) -> list[dict[str, float]]:
        plan = UpdatePlan(1, minibatch, seed=first)
        return [
            self.backend.train_step(batch_of(step), self.objectives[objective], plan)
            for step in range(first, first + count)
        ]

    def evaluate(self, objective: str) -> dict[str, float]:
        return self.backend.evaluate(batch_of(0), self.objectives[objective])

    def frozen(self, path: str) -> None:
        setup = self.setup
        model = load_frozen(
            setup.folder, Head.LANGUAGE_MODEL, setup.spec, rank=setup.rank, world_size=setup.world_size
        )
        for _ in range(2):
            result = model.forward(batch_of(3), frozenset({"logprobs", "entropy"}))
            model.offload()
        self._save(path, result)

    def columns(self, path: str, outputs: list[str], base: bool = False) -> None:
        forward = self.backend.base_forward if base else self.backend.forward
        self._save(path, forward(batch_of(3), frozenset(outputs)))

    def weights(self, path: str) -> None:
        result = {name: tensor.clone() for name, tensor in self.backend.snapshot()}
        assert self.setup.rank == 0 or not any(tensor.numel() for tensor in result.values())
        self._save(path, result)

    def slices(self, path: str) -> None:
        """Save every rank's own slices: NAME/START,START."""
        pieces = {}
        for piece in self.backend.slices():
            start = ",".join(map(str, piece.start))
            assert f"{piece.name}/{start}" not in pieces
            pieces[f"{piece.name}/{start}"] = (
                piece.tensor.detach().to("cpu", piece.dtype, copy=True).contiguous()
            )
        save_file(pieces, f"{path}-{self.setup.rank}")

    def adapter(self, path: str) -> float:
        result = self.backend.adapter()
        assert result is not None
        self._save(path, {name: tensor.clone() for name, tensor in result.tensors})
        return result.scale

    def save(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)
        self.backend.save(Path(path))

    def load(self, path: str) -> None:
        self.backend.load(Path(path))

    def export(self, path: str) -> None:
        self.backend.export(Path(path))

    def _save(self, path: str, tensors: dict[str, Tensor]) -> None:
        if self.setup.rank == 0:
            save_file(tensors, path)


def run_rank(setup: RankSetup) -> None:
    """Run a rank, from its first command to the last."""
    torch.set_num_threads(1)
    rank = Rank(setup)
    with CommandGroup(setup.rank, setup.world_size, setup.rendezvous, 60, COMMAND_KEY) as group:
        if setup.rank:
            group.follow(rank.handlers())
        else:
            results = _Scenarios(group, rank.handlers(), setup).run()
            (setup.work / "results.json").write_text(json.dumps(results))


class _Scenarios:
    """Commands of rank 0, scenario after scenario."""

    def __init__(self, group: CommandGroup, handlers: Handlers, setup: RankSetup) -> None:
        self._group, self._handlers, self._setup = group, handlers, setup

    def run(self) -> dict[str, Any]:
        return {scenario: getattr(self, f"_{scenario}")() for scenario in self._setup.scenarios}

    def _command(self, name: str, **arguments: Any) -> Any:
        return json.loads(self._group.run(name, json.dumps(arguments).encode(), self._handlers))

    def _path(self, name: str) -> str:
        return str(self._setup.work / name)

    def _policy(self) -> dict[str, Any]:
        """Five PPO and five SFT steps; in between a loss that is not finite, and a checkpoint."""
        self._command("create", head="language_model")
        outputs = ["logprobs", "entropy", "candidate_logprobs"]
        self._command("columns", path=self._path("first"), outputs=outputs)
        self._command("save", path=self._path("untrained"))
        ppo = self._command("steps", objective="ppo", first=0, count=5)
        poisoned = None
        try:
            self._command("steps", objective="poison", first=0, count=1)
        except NonFiniteLoss as error:
            poisoned = str(error)
        sft = self._command("steps", objective="sft", first=5, count=2, minibatch=3)
        self._command("save", path=self._path("shards"))
        sft += self._command("steps", objective="sft", first=7, count=3, minibatch=3)
        self._command("columns", path=self._path("columns"), outputs=outputs)
        self._command("weights", path=self._path("weights"))
        self._command("slices", path=self._path("slices"))
        self._command("frozen", path=self._path("frozen"))
        self._command("export", path=self._path("export"))
        return {
            "ppo": ppo,
            "sft": sft,
            "poisoned": poisoned,
            "evaluated": self._command("evaluate", objective="ppo"),
        }

    def _resumed(self) -> list[dict[str, float]]:
        """Resume from another run's checkpoint, or from this one's."""
        self._command("create", head="language_model")
        self._command("load", path=str(self._setup.elsewhere or self._setup.work / "shards"))
        result: list[dict[str, float]] = self._command(
            "steps", objective="sft", first=7, count=3, minibatch=3
        )
        return result

    def _critic(self) -> list[dict[str, float]]:
        self._command("create", head="value")
        result: list[dict[str, float]] = self._command("steps", objective="value", first=0, count=3)
        self._command("columns", path=self._path("values"), outputs=["values"])
        return result

    def _scores(self) -> None:
        self._command("create", head="score")
        self._command("columns", path=self._path("scores"), outputs=["values", "logprobs"])

    def _adapted(self) -> dict[str, Any]:
        self._command("create", head="language_model", lora=True)
        sft = self._command("steps", objective="sft", first=0, count=4)
        self._command("columns", path=self._path("adapted"), outputs=["logprobs"])
        self._command("columns", path=self._path("base"), outputs=["logprobs"], base=True)
        scale = self._command("adapter", path=self._path("adapter"))
        self._command("weights", path=self._path("merged"))
        self._command("slices", path=self._path("merged-slices"))
        self._command("export", path=self._path("adapted-export"))
        return {"sft": sft, "scale": scale}


@dataclass(frozen=True)
class ContractRun:
    """Results of one run of the contract."""

    work: Path
    world_size: int

    @property
    def results(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.work / "results.json").read_text())
        return result

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.work / name)

    def assembled(self, name: str, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """Assemble all ranks' slices; fails for an element that is missing or duplicated."""
        result = {key: torch.full_like(tensor, float("nan")) for key, tensor in like.items()}
        for rank in range(self.world_size):
            for key, piece in load_file(self.work / f"{name}-{rank}").items():
                tensor, _, start = key.partition("/")
                begins = [int(number) for number in start.split(",")]
                index = tuple(slice(at, at + size) for at, size in zip(begins, piece.shape, strict=True))
                assert bool(result[tensor][index].isnan().all()), f"{key} of rank {rank} overlaps another"
                result[tensor][index] = piece
        for key, tensor in result.items():
            assert not bool(tensor.isnan().any()), f"{key} is not covered"
        return result
