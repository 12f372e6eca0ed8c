"""Offline learning within one process: the driver's row source, frozen reference and held-out loss over the
real backend, without further processes, RPC and bus."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from kubealign.spec.algorithms import Algorithm as AlgorithmUnion
from kubealign.spec.sections.training import Trainer
from kubealign_services.algorithms.contract import outputs_before_step
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from kubealign_services.data.epoch_shuffle import DatasetOrder, EpochCursor
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.reference import FrozenReference
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.sources.batch_sources import FrozenModels, NoFrozenModels, RowSource
from kubealign_services.roles.driver.sources.row_batches import RowBatches
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import OldLogprobs
from kubealign_services.roles.driver.validation.validation import HeldOutLoss
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from support.tiny_jobs import ARCHITECTURE

_LOGPROBS = frozenset({"logprobs"})


class OfflineLearner:
    """One job. `asked`: number of sequences sent to the reference so far. `figures`: metrics of each step."""

    def __init__(
        self,
        folder: Path,
        algorithm: dict[str, Any],
        train: Sequence[dict[str, Any]],
        held_out: Sequence[dict[str, Any]],
        learning_rate: float,
        steps: int,
    ) -> None:
        """algorithm: as in a job's spec. train, held_out: rows with texts (prompt; chosen and rejected, or
        response) and their annotations (chosen_rating and rejected_rating, or label)."""
        self.asked = 0
        self.figures: list[dict[str, float]] = []
        union = AlgorithmUnion.model_validate(algorithm)
        entry = union.value
        self._algorithm = make_algorithm(union)
        texts = [value for row in train for value in row.values() if isinstance(value, str)]
        tokenizer = train_character_tokenizer(texts)
        build_model(ARCHITECTURE, tokenizer, 1, folder / "model", "architecture")
        spec = Trainer.model_validate({"optimizer": {"adamW": {"learningRate": learning_rate}}})
        self._backend = TorchTrainingBackend.create(
            folder / "model", Head.LANGUAGE_MODEL, spec, total_updates=steps, seed=1
        )
        self._frozen_model = FrozenTorchModel.load(
            folder / "model", Head.LANGUAGE_MODEL, spec.backend.value.precision, 8192
        )
        self._frozen: FrozenModels = NoFrozenModels()
        if self._algorithm.needs_reference:
            self._frozen = FrozenReference(
                self._reference, FrozenScoreCache(folder / "frozen", "reference", 1)
            )
        rows = [prepared(tokenizer, index, row) for index, row in enumerate(train)]
        held_rows = [prepared(tokenizer, index, row) for index, row in enumerate(held_out)]
        supply = EpochPrompts(rows, DatasetOrder(len(rows), 1), EpochCursor(), [])  # type: ignore[arg-type]
        self._source = RowSource(
            supply,
            0,
            entry.rows_per_step,
            RowBatches(rows, entry.data, entry.mismatched),
            asyncio.Event(),
            self._frozen,
        )
        trainer: Any = self
        self._policy = OldLogprobs(trainer, outputs_before_step(self._algorithm))
        self._held_out_loss = HeldOutLoss(
            trainer,
            self._algorithm,
            held_rows,  # type: ignore[arg-type]
            RowBatches(held_rows, entry.data, entry.mismatched),
            self._frozen,
            None,
        )
        self._state = JobState()

    def learn(self, steps: int) -> None:
        asyncio.run(self._learn(steps))

    def measure(self) -> dict[str, float]:
        """Return the held-out metrics, their names without val/."""
        measured = asyncio.run(self._held_out_loss(self._state))
        return {name.removeprefix("val/"): value for name, value in measured.items()}

    # Interface of the driver's trainer client.

    async def logprobs(self, batch: Batch, keep_graph: bool = False) -> Tensor:
        return self._backend.forward(batch, _LOGPROBS)["logprobs"]

    async def evaluate(self, batch: Batch) -> dict[str, float]:
        return self._backend.evaluate(batch, self._algorithm.policy_objective())

    async def _reference(self, batch: Batch) -> Tensor:
        self.asked += len(batch)
        return self._frozen_model.forward(batch, _LOGPROBS)["logprobs"]

    async def _learn(self, steps: int) -> None:
        for _ in range(steps):
            step = StepRecord(self._state.step + 1)
            batch = await self._source.next_batch(self._state, step)
            assert batch is not None
            await self._policy.add_to(batch, step)
            step.add(self._algorithm.advantages(batch, self._state.algorithm))
            batch = drop_auxiliary(batch)
            plan = UpdatePlan(1, len(batch), self._state.step)
            step.add(self._backend.train_step(batch, self._algorithm.policy_objective(), plan))
            self._state = self._source.state_after(self._state)
            self.figures.append(step.metrics)


def prepared(tokenizer: Any, index: int, row: dict[str, Any]) -> PreparedRow:
    """Return the tokenized row; responses end with the end-of-sequence token."""

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    responses = {
        f"{name}_tokens": [*tokens(row[name]), tokenizer.eos_token_id]
        for name in ("response", "chosen", "rejected")
        if name in row
    }
    labels = {name: row[name] for name in ("label", "chosen_rating", "rejected_rating") if name in row}
    return PreparedRow(
        row=index,
        prompt_tokens=tokens(row["prompt"]),
        prompt_text=row["prompt"],
        **responses,
        **labels,
    )
