"""A field of the spec by its path, told as kubectl explain tells one, or the path that was probably meant."""

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
    """The text says what is there instead."""


@dataclass(frozen=True)
class FieldWords:
    """What there is to say of a field. `default` is empty where it makes no sense."""

    path: str
    type: str
    default: str
    bounds: str
    meaning: str


@dataclass(frozen=True)
class Explanation:
    """A field, and those below it. `one_of`: exactly one of those is set."""

    field: FieldWords
    about: str
    below: Sequence[FieldWords]
    one_of: bool


def explanation(path: str) -> Explanation:
    """Of spec.algorithm.ppo.kl, spec.rewards[0].weight or status.phase; of the document, where it is empty.

    Raises NoSuchField."""
    names = [name for name in _INDEX.sub("", path.strip(". ")).split(".") if name]
    if names and names[0].lower() in _KINDS:
        names = names[1:]
    model: type[BaseModel] = AlignmentJob
    field: FieldInfo | None = None
    words = FieldWords("AlignmentJob", "object", "", "", "One job.")
    done: list[str] = []
    if names[:1] == ["status"]:
        model, done, names = AlignmentJobStatus, ["status"], names[1:]
        words = FieldWords("status", "object", "", "", "What the operator says of the job.")
    below: type[BaseModel] | None = model
    for name in names:
        if below is None or name not in allowed(below):
            raise NoSuchField(_guess(done, name, below))
        field = allowed(below)[name]
        done.append(name)
        words = _words(below, name, ".".join(done))
        below = model_of(entry(field.annotation) or field.annotation)
    fields = () if below is None else tuple(_words(below, name, name) for name in allowed(below))
    about = "" if below is None else " ".join((below.__doc__ or "").split())
    return Explanation(words, about, fields, below is not None and issubclass(below, Union))


def paths(beginning: str) -> list[str]:
    """The paths that go on from what is typed so far, for a shell."""
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


def _guess(done: Sequence[str], name: str, model: type[BaseModel] | None) -> str:
    where = ".".join(done) or "the document"
    there = list(allowed(model)) if model is not None else []
    below = f"{where} has {', '.join(there)}" if there else f"{where} has no fields"
    root = AlignmentJobStatus if done[:1] == ["status"] else AlignmentJob
    head = "status." if done[:1] == ["status"] else ""
    close = nearest(name, there)
    elsewhere = places_shown(root, name)
    if close is not None:
        meant = [".".join([*done, close])]
    else:
        meant = [head + place.replace("[]", "") for place in elsewhere[:3]]
    guess = f"did you mean {' or '.join(meant)}? " if meant else ""
    return f"there is no field {'.'.join([*done, name])}: {guess}{below}"
