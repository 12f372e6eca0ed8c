"""Teacher candidates (most likely tokens): of samples, or of given rows, requested on the bus and cached."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign.v1 import scoring_pb2
from kubealign_services.batch.codec import CorruptBatch, decode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.metrics.report import StepRecord

TEACHER = "teacher"
CANDIDATES, CANDIDATE_LOGPROBS = "candidates", "candidate_logprobs"

#: Limit of the cache, which holds K token ids and K numbers per token. Rows beyond the limit are requested
#: again each time.
MAX_CACHE_BYTES = 2 << 30


class FrozenTeacher:
    """Adds the teacher's candidates to batches of rows, from the cache or by request.

    Args:
        temperature: Temperature of the candidates' log-probabilities.
    """

    def __init__(
        self,
        scores: RowScorer,
        cache: FrozenScoreCache,
        temperature: float,
        max_cache_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        self._scores = scores
        self._cache = cache
        self._temperature = temperature
        self._max_cache_bytes = max_cache_bytes

    async def add_columns(self, batch: Batch, step: StepRecord) -> None:
        """Add the token columns candidates (int64 [T, K]) and candidate_logprobs (float32 [T, K]), 0 outside
        the responses, and the scalar candidates_temperature.

        Raises:
            UnrecoverableError: The candidates do not fit their sequence.
        """
        with step.phase(TEACHER):
            cached = self._cache.find(batch)
            missing = [index for index, columns in enumerate(cached) if columns is None]
            step.add({"teacher/kept_share": 1 - len(missing) / len(batch)})
            if missing:
                uncached = batch.select(missing)
                candidates = await self._request_candidates(uncached)
                for index, columns in zip(missing, candidates, strict=True):
                    cached[index] = columns
                if self._cache.size_bytes < self._max_cache_bytes:
                    columns = {
                        name: _concatenate_column(candidates, name)
                        for name in (CANDIDATES, CANDIDATE_LOGPROBS)
                    }
                    self._cache.add(uncached, columns)
            _add_candidate_columns(batch, cached, self._temperature)

    async def _request_candidates(self, batch: Batch) -> list[dict[str, Tensor] | None]:
        """Return the candidate columns of each sequence, token ids as int32."""
        return _decode_scores(batch, await self._scores.score(batch))


def add_sample_candidates(batch: Batch, scores: Sequence[scoring_pb2.Score], temperature: float) -> None:
    """Add the columns and the scalar of `FrozenTeacher.add_columns` to a batch of samples.

    Args:
        scores: The teacher's score of each sequence.
        temperature: Temperature of the candidates' log-probabilities.

    Raises:
        UnrecoverableError: The candidates do not fit their sequence.
    """
    _add_candidate_columns(batch, _decode_scores(batch, scores), temperature)


def _add_candidate_columns(
    batch: Batch, candidates: Sequence[dict[str, Tensor] | None], temperature: float
) -> None:
    batch.token_columns[CANDIDATES] = _concatenate_column(candidates, CANDIDATES).long()
    batch.token_columns[CANDIDATE_LOGPROBS] = _concatenate_column(candidates, CANDIDATE_LOGPROBS)
    batch.scalars["candidates_temperature"] = temperature


def _decode_scores(batch: Batch, scores: Sequence[scoring_pb2.Score]) -> list[dict[str, Tensor] | None]:
    """Return the candidate columns of each sequence, token ids as int32."""
    learned = batch.token("loss_mask").bool() & (batch.positions > 0)
    bounds = batch.cu_seqlens.tolist()
    return [
        _decode_candidates(score, name, learned[bounds[index] : bounds[index + 1]])
        for index, (score, name) in enumerate(zip(scores, batch.sample_ids, strict=True))
    ]


def _decode_candidates(score: scoring_pb2.Score, name: str, learned: Tensor) -> dict[str, Tensor]:
    """Decode the teacher's top-K for one sequence.

    Args:
        learned: bool [T], tokens in the loss.
    """
    try:
        reply = decode_columns(score.candidates, score.candidates_digest)
    except CorruptBatch as error:
        raise UnrecoverableError(f"the teacher's candidates for {name} cannot be decoded: {error}") from error
    count = int(learned.sum())
    shapes = {key: tuple(column.shape) for key, column in reply.items()}
    if shapes.keys() != {"tokens", "logprobs"} or any(shape[0] != count for shape in shapes.values()):
        raise UnrecoverableError(f"the teacher sent {shapes} for the {count} response tokens of {name}")
    return {
        CANDIDATES: _scatter_rows(reply["tokens"], learned),
        CANDIDATE_LOGPROBS: _scatter_rows(reply["logprobs"], learned),
    }


def _scatter_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Return one row per token from one row per marked token; 0 elsewhere."""
    spread = values.new_zeros((len(mask), values.shape[1]))
    spread[mask] = values
    return spread


def _concatenate_column(parts: Sequence[dict[str, Tensor] | None], name: str) -> Tensor:
    """Concatenate one column of all sequences."""
    return torch.cat([columns[name] for columns in parts if columns is not None])
