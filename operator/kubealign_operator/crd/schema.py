"""Converts models to a structural schema: no references, no alternatives, only keywords that an API server
accepts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import PATTERNS, Union
from kubealign.spec.fields import allowed, entry, model_of
from kubealign_operator.crd.rule import Rule, text

Schema: TypeAlias = dict[str, Any]

#: Rules of each model, in addition to those of its fields.
Rules: TypeAlias = Mapping[type[BaseModel], Sequence[Rule]]

_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "pattern")
_KEPT = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")


@dataclass(frozen=True)
class Emitter:
    """Emits the schema of a model and of all models below it. `definitions`: pydantic's schemas by model
    name.
    """

    definitions: Mapping[str, Schema]
    rules: Rules

    @classmethod
    def of(cls, root: type[BaseModel], rules: Rules) -> "Emitter":
        """Create an emitter for a root model."""
        schema = root.model_json_schema()
        return cls({**schema.get("$defs", {}), root.__name__: schema}, rules)

    def model(self, model: type[BaseModel]) -> Schema:
        """Return the schema of an object of this model."""
        definition = self.definitions[model.__name__]
        schema: Schema = {"type": "object"}
        if model.__doc__:
            schema["description"] = " ".join(model.__doc__.split())
        fields = allowed(model)
        if fields:
            schema["properties"] = {
                name: self._field(field, definition["properties"][name]) for name, field in fields.items()
            }
        if issubclass(model, Union) and model.default_member is not None and len(fields) == 1:
            # With several members, a schema cannot express a default that applies if no other member is set.
            (only,) = schema["properties"].values()
            only["default"] = {}
        required = [name for name, field in fields.items() if field.is_required()]
        if required:
            schema["required"] = required
        rules = [rule.document() for rule in self.rules.get(model, ())]
        if rules:
            schema["x-kubernetes-validations"] = rules
        return schema

    def _field(self, field: FieldInfo, definition: Schema) -> Schema:
        alternatives = [part for part in definition.get("anyOf", [definition]) if part.get("type") != "null"]
        if len(alternatives) != 1:
            raise ValueError(f"a field must have one type or null, this one is {definition}")
        schema = self._value(alternatives[0], field.annotation)
        if field.description:
            schema["description"] = field.description
        schema |= {key: definition[key] for key in _KEPT if key in definition}
        default = _default(field)
        if default is not None:
            if "anyOf" in definition:
                # kubectl apply omits nulls, so the default would silently replace them.
                raise ValueError(
                    f"null must mean an absent field, but the default is {default}: {definition}"
                )
            schema["default"] = default
        return schema

    def _value(self, definition: Schema, annotation: Any) -> Schema:
        if "$ref" in definition:
            model = model_of(annotation)
            name = definition["$ref"].removeprefix("#/$defs/")
            return self.model(model) if model is not None else _choice(self.definitions[name]["enum"])
        if "const" in definition:
            return _choice([definition["const"]])
        if definition.get("x-kubernetes-int-or-string"):
            return _amount(definition)
        schema: Schema = {"type": definition["type"]} | {
            key: definition[key] for key in _BOUNDS if key in definition
        }
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in definition:
                schema |= {bound: definition[exclusive], exclusive: True}
        match definition["type"]:
            case "integer":
                schema["format"] = "int64"
            case "string" if "format" in definition:
                schema["format"] = definition["format"]
            case "array":
                items = definition["prefixItems"][0] if "prefixItems" in definition else definition["items"]
                schema["items"] = self._value(items, entry(annotation))
            case "object":
                schema |= self._map(definition)
        return schema

    def _map(self, definition: Schema) -> Schema:
        if definition.get("additionalProperties") is True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if "patternProperties" not in definition:
            return {"additionalProperties": self._value(definition["additionalProperties"], None)}
        ((pattern, value),) = definition["patternProperties"].items()
        keys = Rule(f"self.all(key, key.matches({text(pattern)}))", f"each key must be {PATTERNS[pattern]}")
        return {
            "additionalProperties": self._value(value, None),
            "x-kubernetes-validations": [keys.document()],
        }


def _choice(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _amount(definition: Schema) -> Schema:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 0,
        "maxLength": definition["maxLength"],
        "pattern": definition["pattern"],
    }


def _default(field: FieldInfo) -> Any:
    """Return the complete default of an absent field, since an API server validates rules before it fills in
    nested defaults.
    """
    if field.is_required():
        return None
    return _plain(field.get_default(call_default_factory=True))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def places(schema: Schema, place: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield (dotted path, schema) of this schema and of all schemas below; list items as `[]`, map values as
    `{}`.
    """
    yield place, schema
    for name, below in schema.get("properties", {}).items():
        yield from places(below, f"{place}.{name}" if place else name)
    if "items" in schema:
        yield from places(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from places(schema["additionalProperties"], f"{place}{{}}")
