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

from kubealign.spec.algorithms import Algorithm, Requirement, ResultKind
from kubealign.spec.base import SpecUnion
from kubealign.spec.docs.field_docs import describe_bounds, describe_meaning, format_flow, schema_properties
from kubealign.spec.field_lookup import document_fields, item_type, nested_model, strip_optional
from kubealign.spec.job import API_VERSION, KIND, AlignmentJob

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
_EXAMPLE_FILES: dict[str, str] = {
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
_BATCH_SIZE_FIELDS = ("promptsPerStep", "rowsPerStep", "promptsPerRound")
_JUDGE = "How good is this answer?\n\n{prompt}\n\n{response}\n\nScore: "
#: Required fields of algorithms, by member.
_REQUIRED: dict[str, dict[str, Any]] = {
    "selfRewarding": {"judge": {"prompt": _JUDGE}},
    "custom": {"name": "my-algorithm"},
    "customOffline": {"name": "my-algorithm"},
    "evaluate": {"step": 0},
}
_RATED = {"text": {"chosenRating": "chosen_rating", "rejectedRating": "rejected_rating"}}


def job_template(algorithm: str, name: str) -> str:
    """Return the template for an algorithm by its command line name: sft, reward-model, ppo, dr-grpo, ..."""
    head, *tail = algorithm.split("-")
    member = head + "".join(part.capitalize() for part in tail)
    field = document_fields(Algorithm)[member]
    model = nested_model(field.annotation)
    assert model is not None
    values, hidden = _required_values(member, model)
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": values}
    summary = (model.__doc__ or "").split("\n")[0].rstrip(".")
    lines = _TemplateWriter(hidden).fields(AlignmentJob, document, (), 0, active=True)
    return _HEAD.format(what=summary + ".", path=f"spec.algorithm.{member}") + "\n" + "\n".join(lines) + "\n"


def _required_values(member: str, kind: type[BaseModel]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the required fields with plausible values, and the fields of the spec that the algorithm does
    not use.
    """
    size = next((name for name in _BATCH_SIZE_FIELDS if name in document_fields(kind)), None)
    entry = ({} if size is None else {size: 64}) | _REQUIRED.get(member, {})
    algorithm: Any = kind.model_validate(entry)
    rows: dict[str, Any] = {"source": {"path": _EXAMPLE_FILES[algorithm.data]}}
    if algorithm.rated:
        rows["format"] = _RATED
    spec: dict[str, Any] = {
        "maxSteps": 1000,
        "algorithm": {member: entry},
        "policy": {"model": _MODEL},
        "data": {algorithm.data: rows},
    }
    measures = algorithm.makes is ResultKind.METRICS
    if measures:
        del spec["maxSteps"], spec["data"]
        spec["validation"] = {"data": {algorithm.data: rows}}
    if algorithm.teacher:
        spec["teacher"] = _TEACHER
    if algorithm.needs_reference_model:
        spec["reference"] = _TEACHER
    if algorithm.rewards is Requirement.NEEDED:
        spec["rewards"] = [_SCORER if algorithm.critic else _FUNCTION]
    useful = {
        "critic": algorithm.critic,
        "reference": algorithm.uses_reference or algorithm.online,
        "teacher": algorithm.teacher,
        "teachers": algorithm.several_teachers,
        "rewards": algorithm.rewards is not Requirement.NONE,
        "rollout": algorithm.samples,
        "trainer": algorithm.trains,
        "validation": algorithm.trains or measures,
        "maxSteps": not measures,
        "data": not measures,
    }
    return spec, frozenset(name for name, is_used in useful.items() if not is_used)


class _TemplateWriter:
    """Renders fields as lines. `hidden`: fields of the spec that are omitted."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden

    def fields(
        self,
        model: type[BaseModel],
        values: Mapping[str, Any],
        path: tuple[str, ...],
        depth: int,
        *,
        active: bool,
    ) -> Iterator[str]:
        """Yield the lines of one object.

        Args:
            active: False inside an object that is commented out.
        """
        properties = schema_properties(model)
        union = issubclass(model, SpecUnion)
        for name, field in document_fields(model).items():
            if path == ("spec",) and name in self._hidden:
                continue
            if len(path) == 1 and path[0] == "spec":
                yield ""
            at = (*path, name)
            if name in values:
                # The head of a document needs no comment.
                if path or name in ("metadata", "spec"):
                    yield from self._comment(field, properties[name], depth)
                yield from self._value(field, values[name], at, depth, active=active)
                if union:
                    yield from self._alternatives(model, name, path, depth)
            elif not union:
                yield from self._comment(field, properties[name], depth)
                yield from self._default(field, at, depth)

    def _comment(self, field: FieldInfo, schema: dict[str, Any], depth: int) -> Iterator[str]:
        # The maximum length of a text is of no interest to a beginner.
        bounds = "" if strip_optional(field.annotation) is str else describe_bounds(schema)
        text = (
            describe_meaning(field).replace("`", "").rstrip(".")
            + "."
            + (f" {bounds.capitalize()}." if bounds else "")
        )
        indent = "  " * depth
        for line in textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False):
            yield f"{indent}# {line}"

    def _value(
        self, field: FieldInfo, value: Any, path: tuple[str, ...], depth: int, *, active: bool
    ) -> Iterator[str]:
        start = "  " * depth + ("" if active else "#") + path[-1] + ":"
        below, item = nested_model(field.annotation), nested_model(item_type(field.annotation))
        if below is not None and document_fields(below):
            yield start
            yield from self.fields(below, value, path, depth + 1, active=active)
        elif item is not None and value:
            yield start
            for item_value in value:
                lines = list(self.fields(item, item_value, path, depth + 1, active=active))
                first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
                lead = "  " * depth + "- "
                yield from (line[2:] for line in lines[:first])
                yield lead + lines[first].lstrip()
                yield from lines[first + 1 :]
        else:
            yield f"{start} {format_flow(value) if isinstance(value, dict | list) else _scalar(value)}"

    def _default(self, field: FieldInfo, path: tuple[str, ...], depth: int) -> Iterator[str]:
        value = field.get_default(call_default_factory=True)
        below = nested_model(field.annotation)
        indent = "  " * depth
        if value is None and (below is not None or item_type(field.annotation) is not None):
            yield f"{indent}# {path[-1]} is not set: kubealign explain {'.'.join(path)}"
        elif isinstance(value, BaseModel):
            document = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
            yield from self._value(field, document, path, depth, active=False)
        else:
            yield f"{indent}#{path[-1]}: {_scalar(getattr(value, 'value', value))}"

    def _alternatives(
        self, model: type[BaseModel], chosen: str, path: tuple[str, ...], depth: int
    ) -> Iterator[str]:
        others = [name for name in document_fields(model) if name != chosen]
        if others:
            yield f"{'  ' * depth}# Alternatives: {', '.join(others)}; kubealign explain {'.'.join(path)}"


def _scalar(value: Any) -> str:
    """Format a value on one line of YAML that parses to the same value."""
    if isinstance(value, str):
        return (
            value
            if value and value.replace("/", "").replace(".", "").replace("-", "").isalnum()
            else json.dumps(value)
        )
    return format_flow(value)
