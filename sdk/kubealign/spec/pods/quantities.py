"""Quantities of CPU, memory and devices in Kubernetes notation."""

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from kubealign.spec.base import QUANTITY_PATTERN


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


#: `8`, `500m` or `16Gi`: a whole number or text in documents, always text in Python.
Quantity: TypeAlias = Annotated[
    str,
    Field(pattern=QUANTITY_PATTERN, max_length=64, json_schema_extra={"x-kubernetes-int-or-string": True}),
    BeforeValidator(_text),
]
