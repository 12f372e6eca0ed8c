"""Template of a job for an algorithm: a commented document generated from the models.

Required fields are set; all other fields of the algorithm appear as comments with their defaults, `#name:
value`.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.algorithms import Algorithm, Use
from kubealign.spec.base import Union
from kubealign.spec.fields import allowed, entry, inner, model_of
from kubealign.spec.job import API_VERSION, KIND, AlignmentJob
from kubealign.spec.words import bounds_words, flow, meaning

_WIDTH = 100
_HEAD = """\
# An AlignmentJob: {what}
#
# Required fields are set: replace them with your own models, data and rewards. All other fields are commented
# out with their defaults, as `#field: value`: to change one, uncomment the field and the fields around it.
#
#   kubealign validate FILE     report all errors, field by field
#   kubealign explain PATH      explain a field, such as {path}
#   kubealign run FILE          run the job on this machine
#   kubealign submit FILE       submit the job to a cluster
"""
_MODEL = {"path": "models/base"}
_ROWS: dict[str, str] = {
    "demonstrations": "data/demonstrations.jsonl",
    "preferences": "data/preferences.jsonl",
    "prompts": "data/prompts.jsonl",
    "ratings": "data/ratings.jsonl",
    "unpaired": "data/unpaired.jsonl",
}
_FUNCTION = {"name": "correct", "function": {"file": {"path": "reward.py"}}}
# The critic is initialised from a reward model.
_SCORER = {"name": "helpful", "model": {"path": "models/reward"}}
_TEACHER = {"model": {"path": "models/teacher"}}
#: Batch size fields; the first one that the algorithm has is set.
_SIZES = ("promptsPerStep", "rowsPerStep", "promptsPerRound")
_JUDGE = "How good is this answer?\n\n{prompt}\n\n{response}\n\nScore: "
#: Required fields of algorithms, by member.
_REQUIRED: dict[str, dict[str, Any]] = {
    "selfRewarding": {"judge": {"prompt": _JUDGE}},
    "custom": {"name": "my-algorithm"},
    "customOffline": {"name": "my-algorithm"},
}
_RATED = {"text": {"chosenRating": "chosen_rating", "rejectedRating": "rejected_rating"}}


def template(algorithm: str, name: str) -> str:
    """Return the template for an algorithm by its command line name: sft, reward-model, ppo, dr-grpo, ..."""
    head, *tail = algorithm.split("-")
    member = head + "".join(part.capitalize() for part in tail)
    field = allowed(Algorithm)[member]
    model = model_of(field.annotation)
    assert model is not None
    values, hidden = _given(member, model)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": values}
    summary = (model.__doc__ or "").split("\n")[0].rstrip(".")
    lines = _Writer(hidden).fields(AlignmentJob, document, (), 0, active=True)
    return _HEAD.format(what=summary + ".", path=f"spec.algorithm.{member}") + "\n" + "\n".join(lines) + "\n"


def _given(member: str, kind: type[BaseModel]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the required fields with plausible values, and the fields of the spec that the algorithm does
    not use.
    """
    size = next(name for name in _SIZES if name in allowed(kind))
    entry = {size: 64} | _REQUIRED.get(member, {})
    algorithm: Any = kind.model_validate(entry)
    rows: dict[str, Any] = {"source": {"path": _ROWS[algorithm.data]}}
    if algorithm.rated:
        rows["format"] = _RATED
    spec: dict[str, Any] = {
        "maxSteps": 1000,
        "algorithm": {member: entry},
        "policy": {"model": _MODEL},
        "data": {algorithm.data: rows},
    }
    if algorithm.teacher:
        spec["teacher"] = _TEACHER
    if algorithm.rewards is Use.NEEDED:
        spec["rewards"] = [_SCORER if algorithm.critic else _FUNCTION]
    useful = {
        "critic": algorithm.critic,
        "reference": algorithm.uses_reference or algorithm.online,
        "teacher": algorithm.teacher,
        "rewards": algorithm.rewards is not Use.NONE,
        "rollout": algorithm.samples,
        "trainer": algorithm.trains,
        "validation": algorithm.trains,
    }
    return spec, frozenset(name for name, is_used in useful.items() if not is_used)


class _Writer:
    """Renders fields as lines. `hidden`: fields of the spec that are omitted."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden

    def fields(
        self,
        model: type[BaseModel],
        given: Mapping[str, Any],
        place: tuple[str, ...],
        depth: int,
        *,
        active: bool,
    ) -> Iterator[str]:
        """Yield the lines of one object.

        Args:
            active: False inside an object that is commented out.
        """
        properties = model.model_json_schema()["properties"]
        union = issubclass(model, Union)
        for name, field in allowed(model).items():
            if place == ("spec",) and name in self._hidden:
                continue
            if len(place) == 1 and place[0] == "spec":
                yield ""
            at = (*place, name)
            if name in given:
                # The head of a document needs no comment.
                if place or name in ("metadata", "spec"):
                    yield from self._words(field, properties[name], depth)
                yield from self._value(field, given[name], at, depth, active=active)
                if union:
                    yield from self._others(model, name, place, depth)
            elif not union:
                yield from self._words(field, properties[name], depth)
                yield from self._default(field, at, depth)

    def _words(self, field: FieldInfo, schema: dict[str, Any], depth: int) -> Iterator[str]:
        # The maximum length of a text is of no interest to a beginner.
        bounds = "" if inner(field.annotation) is str else bounds_words(schema)
        text = (
            meaning(field).replace("`", "").rstrip(".") + "." + (f" {bounds.capitalize()}." if bounds else "")
        )
        indent = "  " * depth
        for line in textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False):
            yield f"{indent}# {line}"

    def _value(
        self, field: FieldInfo, value: Any, place: tuple[str, ...], depth: int, *, active: bool
    ) -> Iterator[str]:
        start = "  " * depth + ("" if active else "#") + place[-1] + ":"
        below, item = model_of(field.annotation), model_of(entry(field.annotation))
        if below is not None and allowed(below):
            yield start
            yield from self.fields(below, value, place, depth + 1, active=active)
        elif item is not None and value:
            yield start
            for item_value in value:
                lines = list(self.fields(item, item_value, place, depth + 1, active=active))
                first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
                lead = "  " * depth + "- "
                yield from (line[2:] for line in lines[:first])
                yield lead + lines[first].lstrip()
                yield from lines[first + 1 :]
        else:
            yield f"{start} {flow(value) if isinstance(value, dict | list) else _scalar(value)}"

    def _default(self, field: FieldInfo, place: tuple[str, ...], depth: int) -> Iterator[str]:
        value = field.get_default(call_default_factory=True)
        below = model_of(field.annotation)
        indent = "  " * depth
        if value is None and (below is not None or entry(field.annotation) is not None):
            yield f"{indent}# {place[-1]} is not set: kubealign explain {'.'.join(place)}"
        elif isinstance(value, BaseModel):
            document = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
            yield from self._value(field, document, place, depth, active=False)
        else:
            plain = field.get_default(call_default_factory=True)
            yield f"{indent}#{place[-1]}: {_scalar(getattr(plain, 'value', plain))}"

    def _others(
        self, model: type[BaseModel], chosen: str, place: tuple[str, ...], depth: int
    ) -> Iterator[str]:
        others = [name for name in allowed(model) if name != chosen]
        if others:
            yield f"{'  ' * depth}# Alternatives: {', '.join(others)}; kubealign explain {'.'.join(place)}"


def _scalar(value: Any) -> str:
    """Format a value on one line of YAML that parses to the same value."""
    if isinstance(value, str):
        return (
            value
            if value and value.replace("/", "").replace(".", "").replace("-", "").isalnum()
            else json.dumps(value)
        )
    return flow(value)
