"""One contract for training backends: a story that any backend tells in any layout, with the same ending.

`tell` is what a rank does; what it saw lies in a folder afterwards. Real groups, real processes.
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
from kubealign_services.training.backends import create_backend, load_frozen
from kubealign_services.training.commands.group import CommandGroup, Handlers
from kubealign_services.training.contract import Head, NonFiniteLoss, TrainingBackend, UpdatePlan
from support.batches import random_batch

VOCABULARY = 41
STEPS = 10
PPO_SPEC = algorithms.PPOSpec(prompts_per_step=6, samples_per_prompt=1, entropy_coefficient=0.01)
# Of 24 tokens a pack; the last batch has one sequence, so that data-parallel ranks have nothing of their own.
RESPONSES = [[5, 9, 1, 12, 7, 20], [3, 3, 3, 17, 2, 8], [21, 1, 4, 6, 5, 2], [8] * 6, [6]]


@dataclass(frozen=True)
class Seat:
    """One rank's place in one story: where its model comes from, where it writes, and what it runs."""

    rank: int
    world_size: int
    rendezvous: str | None
    folder: Path
    work: Path
    spec: Trainer
    chapters: tuple[str, ...]
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
    """Return random tokens with every column that the objectives read; the fourth batch at another
    temperature.
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
    if step == 3:
        batch.scalars["temperature"] = 0.7
    return batch


class Poison:
    """A loss that is infinite in one of the microbatches."""

    outputs = frozenset({"logprobs"})
    unit = 1

    def prepare(self, minibatch: Batch) -> None:
        """Nothing to add."""

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
    """What a rank can be told; all ranks of a group have the same."""

    seat: Seat
    objectives: dict[str, Objective] = field(default_factory=objectives)
    made: list[TrainingBackend] = field(default_factory=list)

    @property
    def backend(self) -> TrainingBackend:
        return self.made[0]

    def handlers(self) -> Handlers:
        def command(run: Callable[..., Any]) -> Callable[[bytes], bytes]:
            return lambda payload: json.dumps(run(**json.loads(payload))).encode()

        told = (self.create, self.steps, self.evaluate, self.columns, self.weights, self.slices, self.adapter)
        others = (self.frozen, self.save, self.load, self.export)
        return {run.__name__: command(run) for run in (*told, *others)}

    def create(self, head: str, lora: bool = False) -> None:
        seat = self.seat
        spec = seat.spec.model_copy(update={"lora": Lora(rank=3, alpha=12) if lora else None})
        self.made[:] = [
            create_backend(
                seat.folder, Head(head), spec, STEPS, rank=seat.rank, world_size=seat.world_size, seed=5
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
        seat = self.seat
        model = load_frozen(
            seat.folder, Head.LANGUAGE_MODEL, seat.spec, rank=seat.rank, world_size=seat.world_size
        )
        for _ in range(2):
            found = model.forward(batch_of(3), frozenset({"logprobs", "entropy"}))
            model.offload()
        self._keep(path, found)

    def columns(self, path: str, outputs: list[str], base: bool = False) -> None:
        forward = self.backend.base_forward if base else self.backend.forward
        self._keep(path, forward(batch_of(3), frozenset(outputs)))

    def weights(self, path: str) -> None:
        found = {name: tensor.clone() for name, tensor in self.backend.snapshot()}
        assert self.seat.rank == 0 or not any(tensor.numel() for tensor in found.values())
        self._keep(path, found)

    def slices(self, path: str) -> None:
        """Every rank keeps its own: NAME/START,START."""
        pieces = {}
        for piece in self.backend.slices():
            start = ",".join(map(str, piece.start))
            assert f"{piece.name}/{start}" not in pieces
            pieces[f"{piece.name}/{start}"] = (
                piece.tensor.detach().to("cpu", piece.dtype, copy=True).contiguous()
            )
        save_file(pieces, f"{path}-{self.seat.rank}")

    def adapter(self, path: str) -> float:
        found = self.backend.adapter()
        assert found is not None
        self._keep(path, {name: tensor.clone() for name, tensor in found.tensors})
        return found.scale

    def save(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)
        self.backend.save(Path(path))

    def load(self, path: str) -> None:
        self.backend.load(Path(path))

    def export(self, path: str) -> None:
        self.backend.export(Path(path))

    def _keep(self, path: str, tensors: dict[str, Tensor]) -> None:
        if self.seat.rank == 0:
            save_file(tensors, path)


def sit(seat: Seat) -> None:
    """A rank, from its first command to the last."""
    torch.set_num_threads(1)
    rank = Rank(seat)
    with CommandGroup(seat.rank, seat.world_size, seat.rendezvous, 60) as group:
        if seat.rank:
            group.follow(rank.handlers())
        else:
            told = _Story(group, rank.handlers(), seat).tell()
            (seat.work / "told.json").write_text(json.dumps(told))


class _Story:
    """What rank 0 asks for, chapter after chapter."""

    def __init__(self, group: CommandGroup, handlers: Handlers, seat: Seat) -> None:
        self._group, self._handlers, self._seat = group, handlers, seat

    def tell(self) -> dict[str, Any]:
        return {chapter: getattr(self, f"_{chapter}")() for chapter in self._seat.chapters}

    def _ask(self, name: str, **arguments: Any) -> Any:
        return json.loads(self._group.run(name, json.dumps(arguments).encode(), self._handlers))

    def _at(self, name: str) -> str:
        return str(self._seat.work / name)

    def _policy(self) -> dict[str, Any]:
        """Five PPO and five SFT steps; in between a loss that is not finite, and a checkpoint."""
        self._ask("create", head="language_model")
        outputs = ["logprobs", "entropy", "candidate_logprobs"]
        self._ask("columns", path=self._at("first"), outputs=outputs)
        self._ask("save", path=self._at("untrained"))
        ppo = self._ask("steps", objective="ppo", first=0, count=5)
        poisoned = None
        try:
            self._ask("steps", objective="poison", first=0, count=1)
        except NonFiniteLoss as error:
            poisoned = str(error)
        sft = self._ask("steps", objective="sft", first=5, count=2, minibatch=3)
        self._ask("save", path=self._at("shards"))
        sft += self._ask("steps", objective="sft", first=7, count=3, minibatch=3)
        self._ask("columns", path=self._at("columns"), outputs=outputs)
        self._ask("weights", path=self._at("weights"))
        self._ask("slices", path=self._at("slices"))
        self._ask("frozen", path=self._at("frozen"))
        self._ask("export", path=self._at("export"))
        return {
            "ppo": ppo,
            "sft": sft,
            "poisoned": poisoned,
            "evaluated": self._ask("evaluate", objective="ppo"),
        }

    def _resumed(self) -> list[dict[str, float]]:
        """From another story's checkpoint, or from this one's."""
        self._ask("create", head="language_model")
        self._ask("load", path=str(self._seat.elsewhere or self._seat.work / "shards"))
        found: list[dict[str, float]] = self._ask("steps", objective="sft", first=7, count=3, minibatch=3)
        return found

    def _critic(self) -> list[dict[str, float]]:
        self._ask("create", head="value")
        found: list[dict[str, float]] = self._ask("steps", objective="value", first=0, count=3)
        self._ask("columns", path=self._at("values"), outputs=["values"])
        return found

    def _scores(self) -> None:
        self._ask("create", head="score")
        self._ask("columns", path=self._at("scores"), outputs=["values", "logprobs"])

    def _adapted(self) -> dict[str, Any]:
        self._ask("create", head="language_model", lora=True)
        sft = self._ask("steps", objective="sft", first=0, count=4)
        self._ask("columns", path=self._at("adapted"), outputs=["logprobs"])
        self._ask("columns", path=self._at("base"), outputs=["logprobs"], base=True)
        scale = self._ask("adapter", path=self._at("adapter"))
        self._ask("weights", path=self._at("merged"))
        self._ask("slices", path=self._at("merged-slices"))
        self._ask("export", path=self._at("adapted-export"))
        return {"sft": sft, "scale": scale}


@dataclass(frozen=True)
class Told:
    """What a story left behind."""

    work: Path
    world_size: int

    @property
    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.work / "told.json").read_text())
        return found

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.work / name)

    def assembled(self, name: str, like: dict[str, Tensor]) -> dict[str, Tensor]:
        """All ranks' slices put together; fails where an element has none or two."""
        found = {key: torch.full_like(tensor, float("nan")) for key, tensor in like.items()}
        for rank in range(self.world_size):
            for key, piece in load_file(self.work / f"{name}-{rank}").items():
                tensor, _, start = key.partition("/")
                begins = [int(number) for number in start.split(",")]
                place = tuple(slice(at, at + size) for at, size in zip(begins, piece.shape, strict=True))
                assert bool(found[tensor][place].isnan().all()), f"{key} of rank {rank} overlaps another"
                found[tensor][place] = piece
        for key, tensor in found.items():
            assert not bool(tensor.isnan().any()), f"{key} is not covered"
        return found
