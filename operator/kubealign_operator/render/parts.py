"""Finding the parts of a spec by what they are, wherever they stand in it."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

from kubealign.spec.paths import Place

Part = TypeVar("Part", bound=BaseModel)


def parts(model: BaseModel, kind: type[Part], place: Place = ()) -> Iterator[tuple[Place, Part]]:
    """(place, part) of every part of this kind in the model, in the order of the fields."""
    if isinstance(model, kind):
        yield place, model
    for name, field in type(model).model_fields.items():
        held = getattr(model, name)
        if isinstance(held, BaseModel):
            yield from parts(held, kind, (*place, field.alias or name))
        elif isinstance(held, list):
            for index, item in enumerate(held):
                if isinstance(item, BaseModel):
                    yield from parts(item, kind, (*place, field.alias or name, index))
