"""What the teacher finds likely at each place of given rows."""

import torch
from torch import Tensor

from kubealign.v1 import scoring_pb2
from kubealign_services.batch.codec import CorruptBatch, decode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.frozen_cache import FrozenCache
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.row_scores import RowScores

TEACHER = "teacher"
CANDIDATES, LOGPROBS = "candidates", "candidate_logprobs"

#: What is kept for further epochs and restarts, K tokens and K numbers a token: rows beyond it are asked
#: about anew each time.
MOST_KEPT_BYTES = 2 << 30


class FrozenTeacher:
    """Adds the teacher's candidates to batches of rows, from what is kept, or by asking. temperature: of
    their log-probabilities."""

    def __init__(
        self, scores: RowScores, kept: FrozenCache, temperature: float, most_kept: int = MOST_KEPT_BYTES
    ) -> None:
        self._scores = scores
        self._kept = kept
        self._temperature = temperature
        self._most_kept = most_kept

    async def read(self, batch: Batch, step: StepFigures) -> None:
        """Add the token columns candidates (int64 [T, K]) and candidate_logprobs (float32 [T, K]), 0 outside
        the responses, and the scalar candidates_temperature. Raises JobFailed where they do not fit."""
        with step.phase(TEACHER):
            known = self._kept.find(batch)
            missing = [index for index, columns in enumerate(known) if columns is None]
            step.add({"teacher/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                part = batch.select(missing)
                said = await self._ask(part)
                for index, columns in zip(missing, said, strict=True):
                    known[index] = columns
                if self._kept.size_bytes < self._most_kept:
                    self._kept.add(part, {name: _joined(said, name) for name in (CANDIDATES, LOGPROBS)})
            batch.token_columns[CANDIDATES] = _joined(known, CANDIDATES).long()
            batch.token_columns[LOGPROBS] = _joined(known, LOGPROBS)
            batch.scalars["candidates_temperature"] = self._temperature

    async def _ask(self, batch: Batch) -> list[dict[str, Tensor] | None]:
        """For each sequence its columns, candidates as int32."""
        scores = await self._scores.of(batch)
        learned = batch.token("loss_mask").bool() & (batch.positions > 0)
        bounds = batch.cu_seqlens.tolist()
        return [
            _columns(score, name, learned[bounds[index] : bounds[index + 1]])
            for index, (score, name) in enumerate(zip(scores, batch.sample_ids, strict=True))
        ]


def _columns(score: scoring_pb2.Score, name: str, learned: Tensor) -> dict[str, Tensor]:
    """What it says of one sequence, of whose tokens these are learned."""
    try:
        said = decode_columns(score.candidates, score.candidates_digest)
    except CorruptBatch as error:
        raise JobFailed(f"what the teacher said of {name} cannot be read: {error}") from error
    count = int(learned.sum())
    shapes = {key: tuple(column.shape) for key, column in said.items()}
    if shapes.keys() != {"tokens", "logprobs"} or any(shape[0] != count for shape in shapes.values()):
        raise JobFailed(f"the teacher sent {shapes} for the {count} response tokens of {name}")
    return {CANDIDATES: _spread(said["tokens"], learned), LOGPROBS: _spread(said["logprobs"], learned)}


def _spread(values: Tensor, places: Tensor) -> Tensor:
    """One row for each place that is marked -> one for each token, 0 elsewhere."""
    spread = values.new_zeros((len(places), values.shape[1]))
    spread[places] = values
    return spread


def _joined(parts: list[dict[str, Tensor] | None], name: str) -> Tensor:
    return torch.cat([columns[name] for columns in parts if columns is not None])
