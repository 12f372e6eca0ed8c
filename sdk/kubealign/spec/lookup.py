"""Explains a field of the spec by its path, like kubectl explain, or suggests the intended path."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import Union
from kubealign.spec.fields import allowed, entry, inner, model_of, nearest, places_shown
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus
from kubealign.spec.words import bounds_words, default_words, meaning, type_words

_INDEX = re.compile(r"\[[0-9]*\]|\.[0-9]+(?=\.|$)")
_KINDS = ("alignmentjob", "alignmentjobs", "aj")


class NoSuchField(LookupError):
    """No field has the given path. The message lists the fields that exist."""


@dataclass(frozen=True)
class FieldWords:
    """Description of a field. `default` is empty if a default has no meaning."""

    path: str
    type: str
    default: str
    bounds: str
    meaning: str


@dataclass(frozen=True)
class Explanation:
    """Description of a field and of the fields below it.

    `one_of`: exactly one of the fields below must be set.
    """

    field: FieldWords
    about: str
    below: Sequence[FieldWords]
    one_of: bool


def explanation(path: str) -> Explanation:
    """Explain the field at a path, such as spec.algorithm.ppo.kl, spec.rewards[0].weight or status.phase.

    An empty path explains the document. Raises UnknownField.
    """
    names = [name for name in _INDEX.sub("", path.strip(". ")).split(".") if name]
    if names and names[0].lower() in _KINDS:
        names = names[1:]
    model: type[BaseModel] = AlignmentJob
    field: FieldInfo | None = None
    field_doc = FieldWords("AlignmentJob", "object", "", "", "One job.")
    path_parts: list[str] = []
    if names[:1] == ["status"]:
        model, path_parts, names = AlignmentJobStatus, ["status"], names[1:]
        field_doc = FieldWords(
            "status", "object", "", "", "Observed state of the job, written by the operator."
        )
    below: type[BaseModel] | None = model
    for name in names:
        if below is None or name not in allowed(below):
            raise NoSuchField(_guess(path_parts, name, below))
        field = allowed(below)[name]
        path_parts.append(name)
        field_doc = _words(below, name, ".".join(path_parts))
        below = model_of(entry(field.annotation) or field.annotation)
    fields = () if below is None else tuple(_words(below, name, name) for name in allowed(below))
    about = "" if below is None else " ".join((below.__doc__ or "").split())
    return Explanation(field_doc, about, fields, below is not None and issubclass(below, Union))


def paths(beginning: str) -> list[str]:
    """Return the paths that complete the given text, for shell completion."""
    above, _, last = beginning.rpartition(".")
    try:
        names = [field.path for field in explanation(above).below]
    except NoSuchField:
        return []
    if not above:
        names = [*names, "status"]
    return [f"{above}.{name}" if above else name for name in names if name.startswith(last)]


def _words(model: type[BaseModel], name: str, path: str) -> FieldWords:
    field = allowed(model)[name]
    schema = _properties(model)[name]
    default = "" if issubclass(model, Union) else default_words(field)
    return FieldWords(
        path,
        type_words(inner(field.annotation), str).replace("`", ""),
        default.strip("`*"),
        bounds_words(schema),
        meaning(field).replace("`", ""),
    )


@cache
def _properties(model: type[BaseModel]) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = model.model_json_schema()["properties"]
    return properties


def _guess(parents: Sequence[str], name: str, model: type[BaseModel] | None) -> str:
    where = ".".join(parents) or "the document"
    names = list(allowed(model)) if model is not None else []
    below = f"{where} has {', '.join(names)}" if names else f"{where} has no fields"
    root = AlignmentJobStatus if parents[:1] == ["status"] else AlignmentJob
    head = "status." if parents[:1] == ["status"] else ""
    closest = nearest(name, names)
    elsewhere = places_shown(root, name)
    if closest is not None:
        suggestions = [".".join([*parents, closest])]
    else:
        suggestions = [head + path.replace("[]", "") for path in elsewhere[:3]]
    guess = f"did you mean {' or '.join(suggestions)}? " if suggestions else ""
    return f"there is no field {'.'.join([*parents, name])}: {guess}{below}"
