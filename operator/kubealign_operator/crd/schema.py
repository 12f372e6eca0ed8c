"""Models to a structural schema: no references, no alternatives, nothing that an API server refuses."""

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

#: The rules of each model, beside those of its fields.
Rules: TypeAlias = Mapping[type[BaseModel], Sequence[Rule]]

_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "pattern")
_KEPT = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")


@dataclass(frozen=True)
class Emitter:
    """Makes the schema of a model and of all below it. `definitions` are pydantic's, by model name."""

    definitions: Mapping[str, Schema]
    rules: Rules

    @classmethod
    def of(cls, root: type[BaseModel], rules: Rules) -> "Emitter":
        schema = root.model_json_schema()
        return cls({**schema.get("$defs", {}), root.__name__: schema}, rules)

    def model(self, model: type[BaseModel]) -> Schema:
        """The schema of an object that is this model."""
        known = self.definitions[model.__name__]
        schema: Schema = {"type": "object"}
        if model.__doc__:
            schema["description"] = " ".join(model.__doc__.split())
        fields = allowed(model)
        if fields:
            schema["properties"] = {
                name: self._field(field, known["properties"][name]) for name, field in fields.items()
            }
        if issubclass(model, Union) and model.default_member is not None and len(fields) == 1:
            # With several, no schema can say that one is meant only where no other is set.
            (only,) = schema["properties"].values()
            only["default"] = {}
        required = [name for name, field in fields.items() if field.is_required()]
        if required:
            schema["required"] = required
        rules = [rule.document() for rule in self.rules.get(model, ())]
        if rules:
            schema["x-kubernetes-validations"] = rules
        return schema

    def _field(self, field: FieldInfo, known: Schema) -> Schema:
        alternatives = [part for part in known.get("anyOf", [known]) if part.get("type") != "null"]
        if len(alternatives) != 1:
            raise ValueError(f"a field may be one thing or null, this one is {known}")
        schema = self._value(alternatives[0], field.annotation)
        if field.description:
            schema["description"] = field.description
        schema |= {key: known[key] for key in _KEPT if key in known}
        default = _default(field)
        if default is not None:
            if "anyOf" in known:
                # kubectl apply leaves nulls out, so the default would silently take their place.
                raise ValueError(
                    f"null may stand for a field's absence only, here it is not {default}: {known}"
                )
            schema["default"] = default
        return schema

    def _value(self, known: Schema, annotation: Any) -> Schema:
        if "$ref" in known:
            model = model_of(annotation)
            name = known["$ref"].removeprefix("#/$defs/")
            return self.model(model) if model is not None else _choice(self.definitions[name]["enum"])
        if "const" in known:
            return _choice([known["const"]])
        if known.get("x-kubernetes-int-or-string"):
            return _amount(known)
        schema: Schema = {"type": known["type"]} | {key: known[key] for key in _BOUNDS if key in known}
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if exclusive in known:
                schema |= {bound: known[exclusive], exclusive: True}
        match known["type"]:
            case "integer":
                schema["format"] = "int64"
            case "string" if "format" in known:
                schema["format"] = known["format"]
            case "array":
                items = known["prefixItems"][0] if "prefixItems" in known else known["items"]
                schema["items"] = self._value(items, entry(annotation))
            case "object":
                schema |= self._map(known)
        return schema

    def _map(self, known: Schema) -> Schema:
        if known.get("additionalProperties") is True:
            return {"x-kubernetes-preserve-unknown-fields": True}
        if "patternProperties" not in known:
            return {"additionalProperties": self._value(known["additionalProperties"], None)}
        ((pattern, value),) = known["patternProperties"].items()
        keys = Rule(f"self.all(key, key.matches({text(pattern)}))", f"each key must be {PATTERNS[pattern]}")
        return {
            "additionalProperties": self._value(value, None),
            "x-kubernetes-validations": [keys.document()],
        }


def _choice(values: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def _amount(known: Schema) -> Schema:
    return {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 0,
        "maxLength": known["maxLength"],
        "pattern": known["pattern"],
    }


def _default(field: FieldInfo) -> Any:
    """What an absent field stands for, whole: an API server checks rules before it fills in what is below."""
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
    """(dotted place, schema) of this and of all below it; entries of a list as `[]`, of a map as `{}`."""
    yield place, schema
    for name, below in schema.get("properties", {}).items():
        yield from places(below, f"{place}.{name}" if place else name)
    if "items" in schema:
        yield from places(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from places(schema["additionalProperties"], f"{place}{{}}")
