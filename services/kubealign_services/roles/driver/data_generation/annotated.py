"""Rows with reward scores of their responses as columns. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.algorithms import AnnotateSpec
from kubealign.spec.sections.data import DemonstrationDataset
from kubealign.v1 import scoring_pb2
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.errors import UnrecoverableError


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
    """Return the response as text; of messages, the last one's content."""
    layout = data.format.value
    if data.format.chat is not None:
        return str(row.columns[layout.messages][-1]["content"])
    return str(row.columns[layout.response])


def build_annotations(
    scores: Mapping[str, scoring_pb2.Score], entry: AnnotateSpec, reserved: Sequence[str]
) -> dict[str, float]:
    """Return column -> number for each score of each reward.

    A reward with several scores gives one column per score name; a reward with one number gives a column
    of the reward's name.

    Args:
        reserved: Column names of the row itself.

    Raises:
        UnrecoverableError: Two columns would have the same name.
    """
    columns: dict[str, float] = {}
    for source, score in scores.items():
        # A protobuf map has no defined order.
        scores_by_name = dict(sorted(score.attributes.items())) or {source: score.reward}
        for name, value in scores_by_name.items():
            if name in columns or name in reserved:
                owner = "another reward's score" if name in columns else "prompt or response"
                raise UnrecoverableError(
                    f"spec.rewards: {source} gives a score {name}, which is the name of {owner}: rename one"
                )
            columns[name] = _clamp(value, entry)
    return columns


def _clamp(value: float, entry: AnnotateSpec) -> float:
    if entry.lowest is not None:
        value = max(value, entry.lowest)
    if entry.highest is not None:
        value = min(value, entry.highest)
    return round(value) if entry.round_to_integers else value
