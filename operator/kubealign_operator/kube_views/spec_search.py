"""Finds the parts of a spec by type, at any depth."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

from kubealign.spec.paths import DocumentPath

SpecPart = TypeVar("SpecPart", bound=BaseModel)


def spec_parts(
    model: BaseModel, kind: type[SpecPart], path: DocumentPath = ()
) -> Iterator[tuple[DocumentPath, SpecPart]]:
    """Yield (path, part) for every part of this type in the model, in field order."""
    if isinstance(model, kind):
        yield path, model
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from spec_parts(value, kind, (*path, field.alias or name))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    yield from spec_parts(item, kind, (*path, field.alias or name, index))
