"""Annotation: given rows with the job's rewards of their responses as columns (SteerLM's first step)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kubealign.spec.algorithms import AnnotateSpec
from kubealign.spec.sections.data import DemonstrationDataset
from kubealign.spec.sections.rewards import Reward
from kubealign.v1 import scoring_pb2
from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.work_items import encode_scoring_context
from kubealign_services.roles.driver.data_generation.annotated import build_annotations, build_demonstration, get_response_text
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord
from kubealign_services.roles.driver.frozen_models.scores import RowScorer, ScoringContext
from kubealign_services.roles.driver.metrics.score_figures import reward_model_metrics
from kubealign_services.scoring.combination import combine_rewards

_RESERVED_COLUMNS = ("prompt", "response", "messages")

#: Source -> score of a row.
ScoresBySource = dict[str, scoring_pb2.Score]


@dataclass(frozen=True)
class RowAnnotator:
    """Row maker that returns each given row with its scores, in order."""

    rows: Sequence[PreparedRow]
    data: DemonstrationDataset
    entry: AnnotateSpec
    rewards: Sequence[Reward]
    scores: RowScorer
    previews: SamplePreviews

    async def make(
        self, indices: Sequence[int], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        """Return the rows at these indices with their scores."""
        rows = [self.rows[index] for index in indices]
        texts = [get_response_text(self.data, row) for row in rows]
        names = [f"{row.row}#0" for row in rows]
        batch = collate(rows, names, "demonstrations")
        contexts = [
            ScoringContext(encode_scoring_context(row.prompt_text, row.columns), text)
            for row, text in zip(rows, texts, strict=True)
        ]
        with step.phase("score"):
            scores = await self.scores.score_all(batch, contexts)
        step.sample_texts = {
            name: SampleText(row.prompt_text, text) for name, row, text in zip(names, rows, texts, strict=True)
        }
        self._add_metrics(batch, scores, state, step)
        return [
            build_demonstration(self.data, row) | build_annotations(row_scores, self.entry, _RESERVED_COLUMNS)
            for row, row_scores in zip(rows, scores, strict=True)
        ]

    def _add_metrics(self, batch: Batch, scores: Sequence[ScoresBySource], state: DataGenerationState, step: StepRecord) -> None:
        """Add reward metrics, as in a job that trains on these rows, and a few rows for displays."""
        for reward in self.rewards:
            values = [row_scores[reward.name].reward for row_scores in scores]
            batch.sequence_columns[f"reward.{reward.name}"] = torch.tensor(values, dtype=torch.float64)
        batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
        batch.token_columns["weight_version"] = torch.zeros(len(batch.tokens), dtype=torch.int32)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(reward_model_metrics(score for row_scores in scores for score in row_scores.values()))
        step.add(combine_rewards(batch, self.rewards, state.step, state.rewards))
        self.previews.add_previews(batch, step)
