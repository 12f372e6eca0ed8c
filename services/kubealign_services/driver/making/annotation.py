"""Annotation: given rows with the job's rewards of their responses as columns (SteerLM's first step)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kubealign.spec.algorithms import Annotate
from kubealign.spec.data import Demonstrations
from kubealign.spec.rewards import Reward
from kubealign.v1 import scoring_pb2
from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.items import context_json
from kubealign_services.driver.making.annotated import annotations, demonstration, response_text
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.report import Answer, StepFigures
from kubealign_services.driver.row_scores import RowScores, Told
from kubealign_services.driver.score_figures import score_figures
from kubealign_services.scoring.combination import combine

_OWN = ("prompt", "response", "messages")

#: Source -> score of a row.
Scores = dict[str, scoring_pb2.Score]


@dataclass(frozen=True)
class Annotation:
    """Row maker that returns each given row with its scores, in order."""

    rows: Sequence[PreparedRow]
    data: Demonstrations
    entry: Annotate
    rewards: Sequence[Reward]
    scores: RowScores
    previews: Previews

    async def make(
        self, places: Sequence[int], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        """Return the rows at these indices with their scores."""
        rows = [self.rows[index] for index in places]
        texts = [response_text(self.data, row) for row in rows]
        names = [f"{row.row}#0" for row in rows]
        batch = collate(rows, names, "demonstrations")
        contexts = [
            Told(context_json(row.prompt_text, row.columns), text)
            for row, text in zip(rows, texts, strict=True)
        ]
        with step.phase("score"):
            scores = await self.scores.all_of(batch, contexts)
        step.answers = {
            name: Answer(row.prompt_text, text) for name, row, text in zip(names, rows, texts, strict=True)
        }
        self._measure(batch, scores, state, step)
        return [
            demonstration(self.data, row) | annotations(row_scores, self.entry, _OWN)
            for row, row_scores in zip(rows, scores, strict=True)
        ]

    def _measure(self, batch: Batch, scores: Sequence[Scores], state: MakingState, step: StepFigures) -> None:
        """Add reward metrics, as in a job that trains on these rows, and a few rows for displays."""
        for reward in self.rewards:
            values = [row_scores[reward.name].reward for row_scores in scores]
            batch.sequence_columns[f"reward.{reward.name}"] = torch.tensor(values, dtype=torch.float64)
        batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
        batch.token_columns["weight_version"] = torch.zeros(len(batch.tokens), dtype=torch.int32)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(score_figures(score for row_scores in scores for score in row_scores.values()))
        step.add(combine(batch, self.rewards, state.step, state.rewards))
        self.previews.take(batch, step)
