"""The page about the spec, made from the models: `python -m kubealign.spec.document [--write PATH]`."""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import MOST, PATTERNS, Union, alias
from kubealign.spec.changes import IN_CLUSTER
from kubealign.spec.fields import allowed, entry, inner, model_of
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus

_INTRODUCTION = """\
# The spec

<!-- Made from sdk/kubealign/spec by `python -m kubealign.spec.document --write docs/spec.md`. -->

A job is one YAML document; a file may hold several, parted by `---`. `kubealign validate FILE` says
everything that is wrong with a file, `kubealign run FILE` runs it on this machine. This is a whole job:

```yaml
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: sums}
spec:
  maxSteps: 300
  algorithm: {sft: {rowsPerStep: 64}}
  policy: {model: {path: models/base}}
  data: {demonstrations: {source: {path: data/train.jsonl}}}
```

What holds everywhere:

- **Unions.** Where it says *exactly one of*, the object has one of these fields and no other: `algorithm`
  is `{sft: {...}}` or `{ppo: {...}}`. `{}` is a member with its defaults.
- **Types are strict**, as a Kubernetes API server has them: `5` is a number, `"5"` is text. `1e-7` is a
  number. Whole numbers are at most 2147483647 where nothing else is said.
- **No nulls.** Where the default is `null`, the field may be left out; `null` itself says nothing more.
- **File paths** are relative to the folder of the job's file, those given by a parameter or an override too.
- **Jobs that build on one another.** A model can be the result of another job, `model: {job: {name: sums}}`.
  Jobs of one file run in the order of these references.
- **Parameters.** `${NAME}` in a value is filled in by `--param NAME=VALUE`, `${NAME:-default}` has a
  default, `$${` is `${` itself. Inside `{ }` and `[ ]` put it in quotes:
  `{path: "${DATA}/train.jsonl"}`.
- **Overrides.** `--set spec.seed=2` sets a value in every job of the file, `--set sums:spec.seed=2`
  in one alone. An entry of a list goes by its index or its name: `spec.rewards[0].weight`,
  `spec.rewards.helpful.weight`.
"""

_CLUSTER = """\
## In a cluster

`kubectl apply` asks the API server, which checks a job before it is stored by a definition made from this
same spec: types, bounds, unknown fields, unions, and which fields go together. What `kubealign validate`
refuses, it refuses too, and names the field. It differs in this:

- An unknown field is an error for kubectl; a client that does not ask for strict checks has it dropped.
- A `null` stands for nothing. It is dropped, and with `--server-side` it can be refused: leave the field out.
- `${NAME}` is not filled in, and several jobs of one file are taken one by one.
- Of two fields that do not go together it may name the object around one of them.
- `kubectl apply` and `kubectl apply --server-side` of one job do not mix: keep to the one that made it.

What it cannot know, the operator finds out. Until it is mended, the job stays `Pending` and says so in
`status.message` and its conditions:

- that `checkpoint.volume` is there, which only a cluster needs, and that file paths are absolute;
- that the jobs whose results it reads exist, do not wait for one another and end well;
- that claims, ConfigMaps and Secrets exist, and that quota, policies and nodes let the pods run: what is
  below `affinity`, and that each of `volumeMounts` has its volume, is checked when a pod is made.

Files, columns, configurations of models and repositories of a hub are read by the job's own preparation:
where they are not right, the job fails and says which.

Once a job exists:
"""


def page() -> str:
    """docs/spec.md."""
    schemas = AlignmentJob.model_json_schema()
    definitions = {**schemas["$defs"], AlignmentJob.__name__: schemas}
    models = list(dict.fromkeys(_models(AlignmentJob)))
    sections = [_section(model, definitions[model.__name__]) for model in models]
    return "\n".join([_INTRODUCTION, *sections, _in_a_cluster(), *_status()])


def _in_a_cluster() -> str:
    rules = [
        *(f"`{path}` may change;" for path in IN_CLUSTER),
        "labels and annotations may change, and reach the pods that are made from then on;",
        "all else is fixed.",
    ]
    return _CLUSTER + "".join(f"\n- {rule}" for rule in rules) + "\n"


def _status() -> list[str]:
    schemas = AlignmentJobStatus.model_json_schema()
    definitions = {**schemas["$defs"], AlignmentJobStatus.__name__: schemas}
    models = list(dict.fromkeys(_models(AlignmentJobStatus)))
    return [_section(model, definitions[model.__name__]) for model in models]


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        below = _below(field)
        if below is not None:
            yield from _models(below)


def _below(field: FieldInfo) -> type[BaseModel] | None:
    return model_of(entry(field.annotation) or field.annotation)


def _section(model: type[BaseModel], schema: dict[str, Any]) -> str:
    fields = allowed(model)
    lines = [f"## {model.__name__}", "", " ".join((model.__doc__ or "").split()), ""]
    if not fields:
        return "\n".join([*lines, "It has no fields: `{}`.", ""])
    if issubclass(model, Union):
        default = model.default_member
        ends = "" if default is None else f"; `{{}}` stands for `{{{alias(model, default)}: {{}}}}`"
        lines += [
            f"Exactly one of{ends}:",
            "",
            "| Field | Type | Bounds | Meaning |",
            "| --- | --- | --- | --- |",
        ]
    else:
        lines += ["| Field | Type | Default | Bounds | Meaning |", "| --- | --- | --- | --- | --- |"]
    for name, field in fields.items():
        cells = [f"`{name}`", _type(field.annotation), _bounds(schema["properties"][name]), _meaning(field)]
        if not issubclass(model, Union):
            cells.insert(2, _default(field))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _type(annotation: Any) -> str:
    annotation = inner(annotation)
    item = entry(annotation)
    if item is not None:
        count = len(get_args(annotation))
        return f"list of {_type(item)}" if count == 1 else f"list of {count} x {_type(item)}"
    model = model_of(annotation)
    if model is not None:
        return f"[{model.__name__}](#{model.__name__.lower()})"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{choice.value}`" for choice in annotation)
    if annotation in _TYPES:
        return _TYPES[annotation]
    literals = get_args(annotation)
    if all(isinstance(literal, str) for literal in literals):
        return " or ".join(f"`{literal}`" for literal in literals)
    return f"map of {_type(literals[1])}"


_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Any: "any value",
    datetime: "time",
}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return f"`{_flow(value)}`"


def _flow(value: Any) -> str:
    """A value on one line, as YAML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return str(value) or '""'
    return json.dumps(value)


_WORDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "not empty",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def _bounds(schema: dict[str, Any]) -> str:
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if len(parts) != 1 or "prefixItems" in parts[0]:
        parts = parts[0]["prefixItems"][:1] if parts and "prefixItems" in parts[0] else parts[:1]
    bounds: list[str] = []
    for part in parts:
        bounds += [
            words.format(_bound(part[key]))
            for key, words in _WORDS.items()
            if key in part and part[key] != MOST
        ]
        if "pattern" in part:
            bounds.append(PATTERNS[part["pattern"]])
    return ", ".join(bounds)


def _bound(value: float) -> str:
    return "2^53" if value == 2**53 else f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(field: FieldInfo) -> str:
    text = field.description or ""
    choice = inner(field.annotation)
    if isinstance(choice, type) and issubclass(choice, Enum):
        text += " " + " ".join((choice.__doc__ or "").split())
    return text


def main() -> None:
    """Write the page to stdout, or to the file that --write names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", type=Path, metavar="PATH")
    path: Path | None = parser.parse_args().write
    if path is None:
        sys.stdout.write(page())
    else:
        path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
