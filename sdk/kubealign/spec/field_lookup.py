"""Lookup of the spec's fields by path or by name."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from kubealign.spec.base import field_alias
from kubealign.spec.paths import DocumentPath


def document_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model by their names in documents."""
    return {field_alias(model, name): field for name, field in model.model_fields.items()}


def strip_optional(annotation: Any) -> Any:
    """Strip None and bounds from an annotation."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and len(get_args(annotation)) == 2:
            annotation = members[0]
            continue
        return annotation


def item_type(annotation: Any) -> Any:
    """Return the item type of a list or tuple annotation; None: neither a list nor a tuple."""
    annotation = strip_optional(annotation)
    return strip_optional(get_args(annotation)[0]) if get_origin(annotation) in (list, tuple) else None


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model class of an annotation; None: not a model."""
    annotation = strip_optional(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def field_at(root: type[BaseModel], path: DocumentPath) -> FieldInfo | None:
    """Return the field at a path; for a list item, the list's field. None: no such field."""
    field: FieldInfo | None = None
    annotation: Any = root
    for part in path:
        if isinstance(part, int):
            annotation = item_type(annotation)
            continue
        model = nested_model(annotation)
        field = None if model is None else document_fields(model).get(part)
        if field is None:
            return None
        annotation = field.annotation
    return field


def model_at(root: type[BaseModel], path: DocumentPath) -> type[BaseModel] | None:
    """Return the model at a path. None: the value is not a model or does not exist."""
    if not path:
        return root
    field = field_at(root, path)
    if field is None:
        return None
    return nested_model(item_type(field.annotation) if isinstance(path[-1], int) else field.annotation)


@cache
def paths_named(root: type[BaseModel], name: str) -> tuple[str, ...]:
    """Return every dotted path of a field with this name; lists are written as `rewards[]`."""
    return tuple(".".join(path) for path in _walk_paths(root) if path[-1] == name)


def condensed_paths_named(root: type[BaseModel], name: str) -> tuple[str, ...]:
    """Return `paths_named` with a field of many algorithms condensed to one path, spec.algorithm.*.NAME."""
    places = paths_named(root, name)
    if len(places) <= 3:
        return places
    return tuple(
        dict.fromkeys(re.sub(r"^spec\.algorithm\.\w+\.", "spec.algorithm.*.", path) for path in places)
    )


def _walk_paths(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in document_fields(model).items():
        yield (*above, name)
        items = item_type(field.annotation)
        below = nested_model(field.annotation if items is None else items)
        if below is not None:
            yield from _walk_paths(below, (*above, name if items is None else f"{name}[]"))


def closest_name(word: str, names: list[str]) -> str | None:
    """Return the name that the word is probably a misspelling of; None: no similar name."""
    if to_camel(word) in names:
        return to_camel(word)
    folded = {name.lower(): name for name in names}
    close = get_close_matches(word.lower().replace("_", ""), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None
