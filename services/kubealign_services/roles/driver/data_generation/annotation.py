"""Annotation: given rows with the job's rewards of their responses as columns (SteerLM's first step)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kubealign.spec.algorithms import AnnotateSpec
from kubealign.spec.sections.data import DemonstrationDataset
from kubealign.spec.sections.rewards import Reward
from kubealign.v1 import scoring_pb2
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import add_scores
from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.rows.messages import message_text
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.frozen_models.scores import RowScorer, ScoringContext
from kubealign_services.roles.driver.metrics.batch_metrics import score_detail_metrics
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.rollouts.work_items import encode_scoring_context
from kubealign_services.scoring.combination import combine_rewards
from kubealign_services.scoring.worker import read_explanations, read_reward

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
            name: SampleText(row.prompt_text, text, read_explanations(row_scores.values()))
            for name, row, text, row_scores in zip(names, rows, texts, scores, strict=True)
        }
        self._add_metrics(batch, scores, state, step)
        return [
            build_demonstration(self.data, row) | build_annotations(row_scores, self.entry, _RESERVED_COLUMNS)
            for row, row_scores in zip(rows, scores, strict=True)
        ]

    def _add_metrics(
        self, batch: Batch, scores: Sequence[ScoresBySource], state: DataGenerationState, step: StepRecord
    ) -> None:
        """Add reward metrics, as in a job that trains on these rows, and a few rows for displays."""
        for reward in self.rewards:
            add_scores(batch, reward.name, [read_reward(row_scores[reward.name]) for row_scores in scores])
        batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
        batch.token_columns["weight_version"] = torch.zeros(len(batch.tokens), dtype=torch.int32)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(score_detail_metrics(score for row_scores in scores for score in row_scores.values()))
        step.add(combine_rewards(batch, self.rewards, state.step, state.rewards))
        self.previews.add_previews(batch, step)


def build_demonstration(data: DemonstrationDataset, row: PreparedRow) -> dict[str, Any]:
    """Return the row's columns, with prompt and response (or the messages) under their default names."""
    layout = data.format.value
    others = dict(row.columns)
    if data.format.chat is not None:
        messages = others.pop(layout.messages)
        return others | {"messages": messages}
    # With a template, the rewards read the rendered prompt; the row keeps its own.
    prompt = others.pop(layout.prompt, row.prompt_text)
    response = others.pop(layout.response)
    return others | {"prompt": prompt, "response": response}


def get_response_text(data: DemonstrationDataset, row: PreparedRow) -> str:
    """Return the response as text; of messages, the last one's."""
    layout = data.format.value
    if data.format.chat is not None:
        return message_text(row.columns[layout.messages][-1])
    return str(row.columns[layout.response])


def build_annotations(
    scores: Mapping[str, scoring_pb2.Score], entry: AnnotateSpec, reserved: Sequence[str]
) -> dict[str, float | None]:
    """Return column -> number for each score of each reward; None where the reward does not apply.

    A reward with several scores gives one column per score name; a reward with one number gives a column
    of the reward's name.

    Args:
        reserved: Column names of the row itself.

    Raises:
        UnrecoverableError: Two columns would have the same name.
    """
    columns: dict[str, float | None] = {}
    for source, score in scores.items():
        # A protobuf map has no defined order.
        scores_by_name: dict[str, float | None] = dict(sorted(score.attributes.items()))
        scores_by_name = scores_by_name or {source: read_reward(score)}
        for name, value in scores_by_name.items():
            if name in columns or name in reserved:
                owner = "another reward's score" if name in columns else "prompt or response"
                raise UnrecoverableError(
                    f"spec.rewards: {source} gives a score {name}, which is the name of {owner}: rename one"
                )
            columns[name] = None if value is None else _clamp(value, entry)
    return columns


def _clamp(value: float, entry: AnnotateSpec) -> float:
    if entry.lowest is not None:
        value = max(value, entry.lowest)
    if entry.highest is not None:
        value = min(value, entry.highest)
    return round(value) if entry.round_to_integers else value
