"""Converts models to a structural schema: no references, no alternatives, only keywords that an API server
accepts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import PATTERN_DESCRIPTIONS, SpecUnion
from kubealign.spec.field_lookup import document_fields, item_type, nested_model
from kubealign_operator.crd.cel import CelRule, cel_string

Schema: TypeAlias = dict[str, Any]

#: Rules of each model, in addition to those of its fields.
ModelRules: TypeAlias = Mapping[type[BaseModel], Sequence[CelRule]]

_BOUND_KEYWORDS = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
)
_COPIED_KEYWORDS = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")


@dataclass(frozen=True)
class SchemaEmitter:
    """Emits the schema of a model and of all models below it.

    `definitions`: pydantic's schemas by model name.
    """

    definitions: Mapping[str, Schema]
    rules: ModelRules

    @classmethod
    def for_model(cls, root: type[BaseModel], rules: ModelRules) -> "SchemaEmitter":
        """Create an emitter for a root model."""
        schema = root.model_json_schema()
        return cls({**schema.get("$defs", {}), root.__name__: schema}, rules)

    def object_schema(self, model: type[BaseModel]) -> Schema:
        """Return the schema of an object of this model."""
        definition = self.definitions[model.__name__]
        schema: Schema = {"type": "object"}
        if model.__doc__:
            schema["description"] = " ".join(model.__doc__.split())
        fields = document_fields(model)
        if fields:
            schema["properties"] = {
                name: self._field_schema(field, definition["properties"][name])
                for name, field in fields.items()
            }
        if issubclass(model, SpecUnion) and model.default_member is not None and len(fields) == 1:
            # With several members, a schema cannot express a default that applies if no other member is set.
            (only,) = schema["properties"].values()
            only["default"] = {}
        required = [
            name
            for name, field in fields.items()
            if field.is_required() and "default" not in definition["properties"][name]
        ]
        if required:
            schema["required"] = required
        rules = [rule.to_schema() for rule in self.rules.get(model, ())]
        if rules:
            schema["x-kubernetes-validations"] = rules
        return schema

    def _field_schema(self, field: FieldInfo, definition: Schema) -> Schema:
        alternatives = [part for part in definition.get("anyOf", [definition]) if part.get("type") != "null"]
        if len(alternatives) != 1:
            raise ValueError(f"a field must have one type or null, this one is {definition}")
        schema = self._value_schema(alternatives[0], field.annotation)
        if field.description:
            schema["description"] = field.description
        schema |= {key: definition[key] for key in _COPIED_KEYWORDS if key in definition}
        # A required field with a default may be left out only in a cluster, where rules read it.
        default = definition.get("default") if field.is_required() else _default_value(field)
        if default is not None:
            if "anyOf" in definition:
                # kubectl apply omits nulls, so the default would silently replace them.
                raise ValueError(
                    f"null must mean an absent field, but the default is {default}: {definition}"
                )
            schema["default"] = default
        return schema

    def _value_schema(self, definition: Schema, annotation: Any) -> Schema:
        if "$ref" in definition:
            model = nested_model(annotation)
            name = definition["$ref"].removeprefix("#/$defs/")
            return (
                self.object_schema(model)
                if model is not None
                else _enum_schema(self.definitions[name]["enum"])
            )
        if "const" in definition:
            return _enum_schema([definition["const"]])
        if definition.get("x-kubernetes-int-or-string"):
            return _quantity_schema(definition)
        schema: Schema = {"type": definition["type"]} | {
            key: definition[key] for key in _BOUND_KEYWORDS if key in definition
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
                schema["items"] = self._value_schema(items, item_type(annotation))
            case "object":
                schema |= self._map_schema(definition)
        return schema

    def _map_schema(self, definition: Schema) -> Schema:
        if definition.get("additionalProperties") is True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if "patternProperties" not in definition:
            return {"additionalProperties": self._value_schema(definition["additionalProperties"], None)}
        ((pattern, value),) = definition["patternProperties"].items()
        keys = CelRule(
            f"self.all(key, key.matches({cel_string(pattern)}))",
            f"each key must be {PATTERN_DESCRIPTIONS[pattern]}",
        )
        return {
            "additionalProperties": self._value_schema(value, None),
            "x-kubernetes-validations": [keys.to_schema()],
        }


def _enum_schema(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _quantity_schema(definition: Schema) -> Schema:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 0,
        "maxLength": definition["maxLength"],
        "pattern": definition["pattern"],
    }


def _default_value(field: FieldInfo) -> Any:
    """Return the complete default of an absent field, since an API server validates rules before it fills in
    nested defaults.
    """
    if field.is_required():
        return None
    return _to_json(field.get_default(call_default_factory=True))


def _to_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def walk_schema(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield (dotted path, schema) of this schema and of all schemas below; list items as `[]`, map values as
    `{}`.
    """
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk_schema(below, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from walk_schema(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk_schema(schema["additionalProperties"], f"{path}{{}}")
