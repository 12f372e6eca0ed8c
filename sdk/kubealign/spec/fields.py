"""What stands where in the spec: the models' fields, found by place or by name."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from kubealign.spec.base import alias
from kubealign.spec.paths import Place


def allowed(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by their names in documents."""
    return {alias(model, name): field for name, field in model.model_fields.items()}


def inner(annotation: Any) -> Any:
    """The annotation without None and without its bounds."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and len(get_args(annotation)) == 2:
            annotation = members[0]
            continue
        return annotation


def entry(annotation: Any) -> Any:
    """What a list or tuple of this annotation has as entries; None: it is neither."""
    annotation = inner(annotation)
    return inner(get_args(annotation)[0]) if get_origin(annotation) in (list, tuple) else None


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a value of this annotation is; None: it is none."""
    annotation = inner(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def field_at(root: type[BaseModel], place: Place) -> FieldInfo | None:
    """The field at a place; for an entry of a list, the list's. None: there is none."""
    found: FieldInfo | None = None
    annotation: Any = root
    for part in place:
        if isinstance(part, int):
            annotation = entry(annotation)
            continue
        model = model_of(annotation)
        found = None if model is None else allowed(model).get(part)
        if found is None:
            return None
        annotation = found.annotation
    return found


def model_at(root: type[BaseModel], place: Place) -> type[BaseModel] | None:
    """The model at a place. None: something else stands there, or nothing."""
    if not place:
        return root
    field = field_at(root, place)
    if field is None:
        return None
    return model_of(entry(field.annotation) if isinstance(place[-1], int) else field.annotation)


@cache
def places_of(root: type[BaseModel], name: str) -> tuple[str, ...]:
    """Every place, dotted, lists as `rewards[]`, where a field of this name stands."""
    return tuple(".".join(path) for path in _walk(root) if path[-1] == name)


def places_shown(root: type[BaseModel], name: str) -> tuple[str, ...]:
    """As `places_of`; a field that many algorithms have stands there once, as spec.algorithm.*.NAME."""
    places = places_of(root, name)
    if len(places) <= 3:
        return places
    return tuple(
        dict.fromkeys(re.sub(r"^spec\.algorithm\.\w+\.", "spec.algorithm.*.", place) for place in places)
    )


def _walk(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in allowed(model).items():
        yield (*above, name)
        items = entry(field.annotation)
        below = model_of(field.annotation if items is None else items)
        if below is not None:
            yield from _walk(below, (*above, name if items is None else f"{name}[]"))


def nearest(word: str, names: list[str]) -> str | None:
    """The name that the word was probably meant to be."""
    if to_camel(word) in names:
        return to_camel(word)
    folded = {name.lower(): name for name in names}
    close = get_close_matches(word.lower().replace("_", ""), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None
