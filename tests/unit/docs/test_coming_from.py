"""Names in the page for users of other libraries: the spec has the fields and values, docs/metrics.md the
metrics.
"""

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from kubealign.spec.field_lookup import document_fields, item_type, nested_model
from kubealign.spec.job import AlignmentJob
from support.doc_blocks import ROOT

PAGE = ROOT / "docs" / "coming-from.md"
METRICS = ROOT / "docs" / "metrics.md"

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_METRIC = re.compile(r"^[a-z_]+(/\w+)+$")
#: A path of spec fields, and a value of the last of them.
_FIELD = re.compile(r"^(?P<path>[A-Za-z]\w*(\[\])?(\.[A-Za-z]\w*(\[\])?)*)(: (?P<value>.+))?$")
#: Commands and other things that are no field of a job, in the column of kubealign's names.
_NO_FIELD = {"transformers", "kubealign run", "kubectl apply"}


def cells(column: int) -> Iterator[str]:
    """Yield the cells of a column (from 0) of the tables that map names, without their heads."""
    in_table = False
    for line in _FENCED.sub("", PAGE.read_text("utf-8")).splitlines():
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(row) == 3 and row[1] == "kubealign":
            in_table = True
        elif not row:
            in_table = False
        elif in_table and set(row[0]) != {"-"}:
            yield row[column]


def kubealign_names() -> list[str]:
    """Return the code spans of the column of kubealign's names."""
    return [span for cell in cells(1) for span in _SPAN.findall(cell) if span not in _NO_FIELD]


def names_in_prose() -> list[str]:
    """Return the code spans elsewhere on the page that are written as kubealign's fields and values: with a
    capital letter or a dot, and without an underscore.
    """
    _, _, prose = PAGE.read_text("utf-8").partition("\n## What means something else here")
    spans = [span for text in (*cells(2), prose) for span in _SPAN.findall(text)]
    return [span for span in spans if re.search(r"[A-Z]|\w(\[\])?\.[a-z]", span) and "_" not in span]


@cache
def spec_paths() -> dict[tuple[str, ...], Any]:
    """Return the annotation of every field of a job, by its path without marks of lists."""
    return dict(_walk(AlignmentJob, ()))


def _walk(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, field in document_fields(model).items():
        yield (*above, name), field.annotation
        below = _model(field.annotation)
        if below is not None:
            yield from _walk(below, (*above, name))


def _model(annotation: Any) -> type[BaseModel] | None:
    return nested_model(item_type(annotation) or annotation)


def fields_named(path: str) -> list[Any]:
    """Return the annotations of the fields whose path ends with this one."""
    parts = tuple(path.replace("[]", "").split("."))
    return [annotation for known, annotation in spec_paths().items() if known[-len(parts) :] == parts]


def accepts(annotation: Any, value: Any) -> bool:
    """Return True if a field has such a value: known fields below it, or a member of its enumeration."""
    model = _model(annotation)
    if isinstance(value, dict):
        below = {} if model is None else document_fields(model)
        return all(name in below and accepts(below[name].annotation, inner) for name, inner in value.items())
    choices = enumerations(annotation)
    return model is None and (not choices or any(value == member for member in choices))


def enumerations(annotation: Any) -> list[str]:
    """Return the values of the enumerations in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [value for part in get_args(annotation) for value in enumerations(part)]


@cache
def enumeration_values() -> frozenset[str]:
    """Return the values of all enumerations of the spec."""
    return frozenset(value for annotation in spec_paths().values() for value in enumerations(annotation))


def is_known(name: str) -> bool:
    """Return True for a field of a job, with or without a value, and for a value of an enumeration."""
    match = _FIELD.match(name)
    if match is None:
        return False
    fields = fields_named(match["path"])
    if match["value"] is None:
        return bool(fields) or name in enumeration_values()
    value = yaml.safe_load(match["value"])
    return any(accepts(annotation, value) for annotation in fields)


def test_every_row_names_fields_of_the_spec() -> None:
    names = kubealign_names()
    assert len(names) >= 60
    assert [name for name in names if not is_known(name)] == []


def test_differences_and_prose_name_fields_of_the_spec() -> None:
    names = names_in_prose()
    assert len(names) >= 30
    assert [name for name in names if not is_known(name)] == []


def test_every_metric_is_documented() -> None:
    rows = [line.split("|")[1] for line in METRICS.read_text("utf-8").splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in _SPAN.findall(row)}
    named = {span for span in _SPAN.findall(_FENCED.sub("", PAGE.read_text("utf-8"))) if _METRIC.match(span)}
    assert len(named) >= 4
    assert named <= documented


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("promptsPerStep", True),
        ("promptsPerSteps", False),
        ("kl.fixed.coefficient", True),
        ("kl.coefficient", False),
        ("rewards[].truncatedValue", True),
        ("rollout.placement: WithTrainer", True),
        ("rollout.placement: WithCritic", False),
        ("advantage: {center: Group, scale: GroupMean}", True),
        ("advantage: {center: Group, scale: GroupMedian}", False),
        ("trustRegion: {klCov: {}}", True),
        ("trustRegion: {klCovariance: {}}", False),
        ("SequenceMean", True),
        ("SequenceMedian", False),
    ],
)
def test_the_check_tells_names_apart(name: str, known: bool) -> None:
    assert is_known(name) is known
