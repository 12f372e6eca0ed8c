"""Immutability rules: only `kubealign.spec.mutable_fields.MUTABLE_IN_CLUSTER` may change after a job is
created.
"""

from collections.abc import Iterator

from pydantic import BaseModel

from kubealign.spec.changes import IN_CLUSTER
from kubealign.spec.fields import allowed, field_at, model_of
from kubealign.spec.job import AlignmentJobSpec
from kubealign_operator.crd.rule import Rule

_FIXED = "cannot be changed once the job exists: delete the job, or give this one another name"


def unchanged(model: type[BaseModel] = AlignmentJobSpec, place: str = "spec") -> Iterator[Rule]:
    """Yield the rules that keep every other field of the spec unchanged."""
    for name, field in allowed(model).items():
        path = f"{place}.{name}"
        if path in IN_CLUSTER:
            continue
        here = path.removeprefix("spec")
        below = model_of(field.annotation)
        if below is not None and any(free.startswith(f"{path}.") for free in IN_CLUSTER):
            yield from unchanged(below, path)
            continue
        yield Rule(_same(here, optional=_may_be_missing(path)), _FIXED, at=here)


def _same(here: str, *, optional: bool) -> str:
    equal = f"self{here} == oldSelf{here}"
    if not optional:
        return equal
    return f"has(self{here}) == has(oldSelf{here}) && (!has(self{here}) || {equal})"


def _may_be_missing(path: str) -> bool:
    """Return True if the field may be absent in a stored object."""
    field = field_at(AlignmentJobSpec, tuple(path.split(".")[1:]))
    assert field is not None
    return not field.is_required() and field.get_default(call_default_factory=True) is None
