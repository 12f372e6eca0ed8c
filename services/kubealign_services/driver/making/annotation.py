"""Given rows, each with the job's rewards of its response as columns (SteerLM's first step)."""

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

#: Source -> what it says of a row.
Scores = dict[str, scoring_pb2.Score]


@dataclass(frozen=True)
class Annotation:
    """A RowMaker: as many rows as there were, in their order."""

    rows: Sequence[PreparedRow]
    data: Demonstrations
    entry: Annotate
    rewards: Sequence[Reward]
    scores: RowScores
    previews: Previews

    async def make(
        self, places: Sequence[int], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        rows = [self.rows[place] for place in places]
        texts = [response_text(self.data, row) for row in rows]
        names = [f"{row.row}#0" for row in rows]
        batch = collate(rows, names, "demonstrations")
        told = [
            Told(context_json(row.prompt_text, row.columns), text)
            for row, text in zip(rows, texts, strict=True)
        ]
        with step.phase("score"):
            scores = await self.scores.all_of(batch, told)
        step.answers = {
            name: Answer(row.prompt_text, text) for name, row, text in zip(names, rows, texts, strict=True)
        }
        self._measure(batch, scores, state, step)
        return [
            demonstration(self.data, row) | annotations(said, self.entry, _OWN)
            for row, said in zip(rows, scores, strict=True)
        ]

    def _measure(self, batch: Batch, scores: Sequence[Scores], state: MakingState, step: StepFigures) -> None:
        """The rewards as a job that learns from them would have them, and a few rows for displays."""
        for reward in self.rewards:
            values = [said[reward.name].reward for said in scores]
            batch.sequence_columns[f"reward.{reward.name}"] = torch.tensor(values, dtype=torch.float64)
        batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
        batch.token_columns["weight_version"] = torch.zeros(len(batch.tokens), dtype=torch.int32)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(score_figures(score for said in scores for score in said.values()))
        step.add(combine(batch, self.rewards, state.step, state.rewards))
        self.previews.take(batch, step)
