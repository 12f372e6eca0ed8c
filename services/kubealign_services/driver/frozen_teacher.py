"""Teacher candidates (most likely tokens) of given rows, requested over the bus and cached."""

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

#: Limit of the cache, which holds K token ids and K numbers per token. Rows beyond the limit are requested
#: again each time.
MOST_KEPT_BYTES = 2 << 30


class FrozenTeacher:
    """Adds the teacher's candidates to batches of rows, from the cache or by request.

    Args:
        temperature: Temperature of the candidates' log-probabilities.
    """

    def __init__(
        self, scores: RowScores, kept: FrozenCache, temperature: float, most_kept: int = MOST_KEPT_BYTES
    ) -> None:
        self._scores = scores
        self._kept = kept
        self._temperature = temperature
        self._most_kept = most_kept

    async def read(self, batch: Batch, step: StepFigures) -> None:
        """Add the token columns candidates (int64 [T, K]) and candidate_logprobs (float32 [T, K]), 0 outside
        the responses, and the scalar candidates_temperature.

        Raises:
            UnrecoverableError: The candidates do not fit their sequence.
        """
        with step.phase(TEACHER):
            cached = self._kept.find(batch)
            missing = [index for index, columns in enumerate(cached) if columns is None]
            step.add({"teacher/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                uncached = batch.select(missing)
                candidates = await self._ask(uncached)
                for index, columns in zip(missing, candidates, strict=True):
                    cached[index] = columns
                if self._kept.size_bytes < self._most_kept:
                    columns = {name: _joined(candidates, name) for name in (CANDIDATES, LOGPROBS)}
                    self._kept.add(uncached, columns)
            batch.token_columns[CANDIDATES] = _joined(cached, CANDIDATES).long()
            batch.token_columns[LOGPROBS] = _joined(cached, LOGPROBS)
            batch.scalars["candidates_temperature"] = self._temperature

    async def _ask(self, batch: Batch) -> list[dict[str, Tensor] | None]:
        """Return the candidate columns of each sequence, token ids as int32."""
        scores = await self._scores.of(batch)
        learned = batch.token("loss_mask").bool() & (batch.positions > 0)
        bounds = batch.cu_seqlens.tolist()
        return [
            _columns(score, name, learned[bounds[index] : bounds[index + 1]])
            for index, (score, name) in enumerate(zip(scores, batch.sample_ids, strict=True))
        ]


def _columns(score: scoring_pb2.Score, name: str, learned: Tensor) -> dict[str, Tensor]:
    """Decode the teacher's top-K for one sequence.

    Args:
        learned: bool [T], tokens in the loss.
    """
    try:
        reply = decode_columns(score.candidates, score.candidates_digest)
    except CorruptBatch as error:
        raise JobFailed(f"the teacher's candidates for {name} cannot be decoded: {error}") from error
    count = int(learned.sum())
    shapes = {key: tuple(column.shape) for key, column in reply.items()}
    if shapes.keys() != {"tokens", "logprobs"} or any(shape[0] != count for shape in shapes.values()):
        raise JobFailed(f"the teacher sent {shapes} for the {count} response tokens of {name}")
    return {CANDIDATES: _spread(reply["tokens"], learned), LOGPROBS: _spread(reply["logprobs"], learned)}


def _spread(values: Tensor, places: Tensor) -> Tensor:
    """Return one row per token from one row per marked token; 0 elsewhere."""
    spread = values.new_zeros((len(places), values.shape[1]))
    spread[places] = values
    return spread


def _joined(parts: list[dict[str, Tensor] | None], name: str) -> Tensor:
    """Concatenate one column of all sequences."""
    return torch.cat([columns[name] for columns in parts if columns is not None])
