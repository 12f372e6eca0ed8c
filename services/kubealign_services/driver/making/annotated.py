"""A row with what rewards say of its response. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.algorithms import Annotate
from kubealign.spec.data import Demonstrations
from kubealign.v1 import scoring_pb2
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.failures import JobFailed


def demonstration(data: Demonstrations, row: PreparedRow) -> dict[str, Any]:
    """The row's columns as they came, prompt and response (or the messages) under their default names."""
    layout = data.format.value
    others = dict(row.columns)
    if data.format.chat is not None:
        messages = others.pop(layout.messages)
        return others | {"messages": messages}
    # A template's prompt is what the rewards read, not what the row says.
    prompt = others.pop(layout.prompt, row.prompt_text)
    response = others.pop(layout.response)
    return others | {"prompt": prompt, "response": response}


def response_text(data: Demonstrations, row: PreparedRow) -> str:
    """The response as text: of messages, the last one's."""
    layout = data.format.value
    if data.format.chat is not None:
        return str(row.columns[layout.messages][-1]["content"])
    return str(row.columns[layout.response])


def annotations(
    scores: Mapping[str, scoring_pb2.Score], entry: Annotate, taken: Sequence[str]
) -> dict[str, float]:
    """Column -> number: each of a reward's scores under its own name, or the reward under the reward's, where
    it is one number. taken: names that are the row's own. Raises JobFailed where two would have one name."""
    found: dict[str, float] = {}
    for source, score in scores.items():
        # A map has no order of its own.
        named = dict(sorted(score.attributes.items())) or {source: score.reward}
        for name, value in named.items():
            if name in found or name in taken:
                held = "another reward's score" if name in found else "prompt or response"
                raise JobFailed(
                    f"spec.rewards: {source} gives a score {name}, which is the name of {held}: rename one"
                )
            found[name] = _within(value, entry)
    return found


def _within(value: float, entry: Annotate) -> float:
    if entry.lowest is not None:
        value = max(value, entry.lowest)
    if entry.highest is not None:
        value = min(value, entry.highest)
    return round(value) if entry.round_to_integers else value
