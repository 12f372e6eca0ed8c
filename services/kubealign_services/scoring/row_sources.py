"""Choice of the rollouts that a reward of some sources of prompts scores."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.sections.data import SOURCE_COLUMN
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.scoring.row_context import read_row_context
from kubealign_services.scoring.worker import Scorer, empty_score


class MissingSource(ValueError):
    """A row does not tell the source of its prompt. The message names the reward and the column."""


def is_of_source(columns: Mapping[str, Any], sources: Sequence[str], reward: str) -> bool:
    """Return True if a row is of one of these sources of prompts.

    Args:
        columns: Columns of the row. In a mixture each row has its source in the column `source`.
        reward: Name of the reward, for the error.

    Raises MissingSource for a row, of validation, without that column.
    """
    if SOURCE_COLUMN not in columns:
        raise MissingSource(
            f"reward {reward} scores the sources {', '.join(sources)}, and the row has no column "
            f"{SOURCE_COLUMN!r}: add it to the rows, or set values: {{{SOURCE_COLUMN}: NAME}} of the data set"
        )
    return columns[SOURCE_COLUMN] in sources


class SourceScorer:
    """Scorer of rollouts of some sources of prompts. Others get a score without a reward: it does not apply.

    Args:
        scorer: Receives only the rollouts of these sources.
        worker: Name of this process.
    """

    def __init__(self, scorer: Scorer, name: str, worker: str, sources: Sequence[str]) -> None:
        self._scorer = scorer
        self._name = name
        self._worker = worker
        self._sources = sources

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order."""
        scores = [empty_score(rollout, self._name, self._worker) for rollout in rollouts]
        own = []
        for index, rollout in enumerate(rollouts):
            try:
                if is_of_source(read_row_context(rollout)["columns"], self._sources, self._name):
                    own.append(index)
            except MissingSource as error:
                scores[index].error, scores[index].permanent = str(error), True
        if own:
            for index, score in zip(own, await self._scorer([rollouts[index] for index in own]), strict=True):
                scores[index] = score
        return scores


def restrict_to_sources(scorer: Scorer, name: str, worker: str, sources: Sequence[str] | None) -> Scorer:
    """Return the scorer, limited to rollouts of these sources of prompts; None: of all prompts."""
    return scorer if sources is None else SourceScorer(scorer, name, worker, sources)
