"""Immutability rules: once a job exists, only the fields in `spec.mutable_fields` may change."""

from collections.abc import Iterator

from pydantic import BaseModel

from kubealign.spec.field_lookup import document_fields, field_at, nested_model
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.mutable_fields import MUTABLE_IN_CLUSTER, MUTABLE_WHILE_SUSPENDED
from kubealign_operator.crd.cel import CelRule

_IMMUTABLE_MESSAGE = "cannot be changed once the job exists: delete the job, or give this one another name"
_SUSPENDED_MESSAGE = "can only be changed while the job is suspended: set spec.suspend to true first"
# The rollout workers read it when they start: from or to 0 they would look for the environments elsewhere.
_ENVIRONMENT_WORKERS = "spec.rollout.environmentReplicas"
_ZERO_WORKERS_MESSAGE = "cannot change from or to 0 once the job exists: give the job another name"
_IS_SUSPENDED = "(self.suspend && oldSelf.suspend)"


def immutability_rules(
    model: type[BaseModel] = AlignmentJobSpec, parent: str = "spec", condition: str = ""
) -> Iterator[CelRule]:
    """Yield the rules that keep every other field of the spec unchanged.

    Args:
        condition: CEL expression under which the rules hold; empty: always.
    """
    prefix = f"!({condition}) || " if condition else ""
    for name, field in document_fields(model).items():
        path = f"{parent}.{name}"
        here = path.removeprefix("spec")
        if path == _ENVIRONMENT_WORKERS:
            rule = f"{prefix}((self{here} == 0) == (oldSelf{here} == 0))"
            yield CelRule(rule, _ZERO_WORKERS_MESSAGE, field_path=here)
        if path in MUTABLE_IN_CLUSTER:
            continue
        unchanged = _unchanged_expression(here, optional=_is_optional(path))
        if path in MUTABLE_WHILE_SUSPENDED:
            rule = f"{prefix}{_IS_SUSPENDED} || ({unchanged})"
            yield CelRule(rule, _SUSPENDED_MESSAGE, field_path=here)
            continue
        below = nested_model(field.annotation)
        if below is not None and _has_mutable_fields(path):
            present = condition
            if _is_optional(path):
                yield CelRule(f"has(self{here}) == has(oldSelf{here})", _IMMUTABLE_MESSAGE, field_path=here)
                present = f"has(self{here}) && has(oldSelf{here})"
            yield from immutability_rules(below, path, present)
            continue
        yield CelRule(f"{prefix}({unchanged})" if prefix else unchanged, _IMMUTABLE_MESSAGE, field_path=here)


def _has_mutable_fields(path: str) -> bool:
    return any(free.startswith(f"{path}.") for free in (*MUTABLE_IN_CLUSTER, *MUTABLE_WHILE_SUSPENDED))


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
