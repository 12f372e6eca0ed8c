"""Explains a field of the spec by its path, like kubectl explain, or suggests the intended path."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import SpecUnion
from kubealign.spec.docs.field_docs import (
    describe_bounds,
    describe_default,
    describe_meaning,
    describe_type,
    schema_properties,
)
from kubealign.spec.field_lookup import (
    closest_name,
    condensed_paths_named,
    document_fields,
    item_type,
    nested_model,
    strip_optional,
)
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus

_INDEX = re.compile(r"\[[0-9]*\]|\.[0-9]+(?=\.|$)")
_KINDS = ("alignmentjob", "alignmentjobs", "aj")


class UnknownField(LookupError):
    """No field has the given path. The message lists the fields that exist."""


@dataclass(frozen=True)
class FieldDoc:
    """Description of a field. `default` is empty if a default has no meaning."""

    path: str
    type: str
    default: str
    bounds: str
    meaning: str


@dataclass(frozen=True)
class FieldExplanation:
    """Description of a field and of the fields below it.

    `one_of`: exactly one of the fields below must be set.
    """

    field: FieldDoc
    about: str
    below: Sequence[FieldDoc]
    one_of: bool


def explain_field(path: str) -> FieldExplanation:
    """Explain the field at a path, such as spec.algorithm.ppo.kl, spec.rewards[0].weight or status.phase.

    An empty path explains the document. Raises UnknownField.
    """
    names = [name for name in _INDEX.sub("", path.strip(". ")).split(".") if name]
    if names and names[0].lower() in _KINDS:
        names = names[1:]
    model: type[BaseModel] = AlignmentJob
    field: FieldInfo | None = None
    field_doc = FieldDoc("AlignmentJob", "object", "", "", "One job.")
    path_parts: list[str] = []
    if names[:1] == ["status"]:
        model, path_parts, names = AlignmentJobStatus, ["status"], names[1:]
        field_doc = FieldDoc(
            "status", "object", "", "", "Observed state of the job, written by the operator."
        )
    below: type[BaseModel] | None = model
    for name in names:
        if below is None or name not in document_fields(below):
            raise UnknownField(_unknown_field_message(path_parts, name, below))
        field = document_fields(below)[name]
        path_parts.append(name)
        field_doc = _field_doc(below, name, ".".join(path_parts))
        below = nested_model(item_type(field.annotation) or field.annotation)
    fields = () if below is None else tuple(_field_doc(below, name, name) for name in document_fields(below))
    about = "" if below is None else " ".join((below.__doc__ or "").split())
    return FieldExplanation(field_doc, about, fields, below is not None and issubclass(below, SpecUnion))


def complete_path(beginning: str) -> list[str]:
    """Return the paths that complete the given text, for shell completion."""
    above, _, last = beginning.rpartition(".")
    try:
        names = [field.path for field in explain_field(above).below]
    except UnknownField:
        return []
    if not above:
        names = [*names, "status"]
    return [f"{above}.{name}" if above else name for name in names if name.startswith(last)]


def _field_doc(model: type[BaseModel], name: str, path: str) -> FieldDoc:
    field = document_fields(model)[name]
    schema = schema_properties(model)[name]
    default = "" if issubclass(model, SpecUnion) else describe_default(field)
    return FieldDoc(
        path,
        describe_type(strip_optional(field.annotation), str).replace("`", ""),
        default.strip("`*"),
        describe_bounds(schema),
        describe_meaning(field).replace("`", ""),
    )


def _unknown_field_message(parents: Sequence[str], name: str, model: type[BaseModel] | None) -> str:
    where = ".".join(parents) or "the document"
    names = list(document_fields(model)) if model is not None else []
    below = f"{where} has {', '.join(names)}" if names else f"{where} has no fields"
    root = AlignmentJobStatus if parents[:1] == ["status"] else AlignmentJob
    head = "status." if parents[:1] == ["status"] else ""
    closest = closest_name(name, names)
    elsewhere = condensed_paths_named(root, name)
    if closest is not None:
        suggestions = [".".join([*parents, closest])]
    else:
        suggestions = [head + path.replace("[]", "") for path in elsewhere[:3]]
    guess = f"did you mean {' or '.join(suggestions)}? " if suggestions else ""
    return f"there is no field {'.'.join([*parents, name])}: {guess}{below}"
