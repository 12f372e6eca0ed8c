"""Finds the parts of a spec by type, at any depth."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

from kubealign.spec.paths import Place

Part = TypeVar("Part", bound=BaseModel)


def parts(model: BaseModel, kind: type[Part], place: Place = ()) -> Iterator[tuple[Place, Part]]:
    """Yield (path, part) for every part of this type in the model, in field order."""
    if isinstance(model, kind):
        yield place, model
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from parts(value, kind, (*place, field.alias or name))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from parts(item, kind, (*place, field.alias or name, index))
