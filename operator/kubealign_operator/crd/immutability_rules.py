"""Immutability rules: only `kubealign.spec.mutable_fields.MUTABLE_IN_CLUSTER` may change after a job is
created.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from kubealign.spec.field_lookup import document_fields, field_at, nested_model
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.mutable_fields import MUTABLE_IN_CLUSTER
from kubealign_operator.crd.cel import CelRule

_IMMUTABLE_MESSAGE = "cannot be changed once the job exists: delete the job, or give this one another name"


def immutability_rules(model: type[BaseModel] = AlignmentJobSpec, parent: str = "spec") -> Iterator[CelRule]:
    """Yield the rules that keep every other field of the spec unchanged."""
    for name, field in document_fields(model).items():
        path = f"{parent}.{name}"
        if path in MUTABLE_IN_CLUSTER:
            continue
        here = path.removeprefix("spec")
        below = nested_model(field.annotation)
        if below is not None and any(free.startswith(f"{path}.") for free in MUTABLE_IN_CLUSTER):
            yield from immutability_rules(below, path)
            continue
        yield CelRule(
            _unchanged_expression(here, optional=_is_optional(path)), _IMMUTABLE_MESSAGE, field_path=here
        )


def _unchanged_expression(here: str, *, optional: bool) -> str:
    equal = f"self{here} == oldSelf{here}"
    if not optional:
        return equal
    return f"has(self{here}) == has(oldSelf{here}) && (!has(self{here}) || {equal})"


def _is_optional(path: str) -> bool:
    """Return True if the field may be absent in a stored object."""
    field = field_at(AlignmentJobSpec, tuple(path.split(".")[1:]))
    assert field is not None
    return not field.is_required() and field.get_default(call_default_factory=True) is None
