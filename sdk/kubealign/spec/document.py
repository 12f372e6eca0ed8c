"""The page about the spec, made from the models: `python -m kubealign.spec.document [--write PATH]`."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.generated import show_or_write
from kubealign.spec.base import Union, alias
from kubealign.spec.changes import IN_CLUSTER
from kubealign.spec.fields import allowed, entry, model_of
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus
from kubealign.spec.words import bounds_words, default_words, meaning, type_words

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
        cells = [
            f"`{name}`",
            type_words(field.annotation, _link),
            bounds_words(schema["properties"][name]),
            meaning(field),
        ]
        if not issubclass(model, Union):
            cells.insert(2, default_words(field))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _link(model: str) -> str:
    return f"[{model}](#{model.lower()})"


if __name__ == "__main__":
    show_or_write(page)
