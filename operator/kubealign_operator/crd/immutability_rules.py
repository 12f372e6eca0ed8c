"""Immutability rules: once a job exists, only the fields in `spec.mutable_fields` may change."""

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.field_lookup import document_fields, field_at, item_type, nested_model
from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.mutable_fields import MUTABLE_IN_CLUSTER, MUTABLE_WHILE_SUSPENDED
from kubealign_operator.crd.cel import CelRule

_IMMUTABLE_MESSAGE = "cannot be changed once the job exists: delete the job, or give this one another name"
_SUSPENDED_MESSAGE = "can only be changed while the job is suspended: set spec.suspend to true first"
# The rollout workers read it when they start: from or to 0 they would look for the environments elsewhere.
_ENVIRONMENT_WORKERS = "spec.rollout.environmentReplicas"
_ZERO_WORKERS_MESSAGE = "cannot change from or to 0 once the job exists: give the job another name"
_IS_SUSPENDED = "(self.suspend && oldSelf.suspend)"
#: Key of the entries of a list. The API server compares an entry with the earlier one of the same name.
_ENTRY_KEY = "name"
#: Names that are reserved words of CEL, as the API server escapes them. A rule with the plain name compiles
#: too, but its estimated cost has no bound.
_ESCAPED_NAMES = {"function": "__function__"}


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
        if _has_mutable_fields(f"{path}[]"):
            entries = f"{here}.map(entry, entry.{_ENTRY_KEY})"
            yield CelRule(f"{prefix}self{entries} == oldSelf{entries}", _IMMUTABLE_MESSAGE, field_path=here)
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


def entry_immutability_rules() -> dict[type[BaseModel], list[CelRule]]:
    """Return the rules of the entries of lists in which some fields may change: model -> rules.

    They hold between two versions of the entry with the same name; the list itself keeps its names.
    """
    rules: dict[type[BaseModel], list[CelRule]] = {}
    for name, field in document_fields(AlignmentJobSpec).items():
        model = nested_model(item_type(field.annotation))
        path = f"spec.{name}[]"
        if model is None or not _has_mutable_fields(path):
            continue
        rules[model] = [
            CelRule(
                _unchanged_expression(
                    f".{_ESCAPED_NAMES.get(below, below)}", optional=_is_absent_by_default(entry)
                ),
                _IMMUTABLE_MESSAGE,
                field_path=f".{below}",
            )
            for below, entry in document_fields(model).items()
            if below != _ENTRY_KEY and f"{path}.{below}" not in MUTABLE_IN_CLUSTER
        ]
    return rules


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
    return _is_absent_by_default(field)


def _is_absent_by_default(field: FieldInfo) -> bool:
    """Return True if a stored object may lack the field."""
    return not field.is_required() and field.get_default(call_default_factory=True) is None
