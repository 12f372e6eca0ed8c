"""Renders docs/spec.md from the models: `python -m kubealign.spec.docs.spec_page [--write PATH]`."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.generated_file import print_or_write
from kubealign.spec.base import SpecUnion, field_alias
from kubealign.spec.docs.field_docs import describe_bounds, describe_default, describe_meaning, describe_type
from kubealign.spec.field_lookup import document_fields, item_type, nested_model
from kubealign.spec.job import AlignmentJob
from kubealign.spec.mutable_fields import MUTABLE_IN_CLUSTER, MUTABLE_WHILE_SUSPENDED
from kubealign.spec.status import AlignmentJobStatus

_INTRODUCTION = """\
# The spec

<!-- Generated from sdk/kubealign/spec by `python -m kubealign.spec.docs.spec_page --write docs/spec.md`. -->

A job is one YAML document; a file may contain several, separated by `---`. `kubealign validate FILE` reports
all errors in a file, and `kubealign run FILE` runs the file's jobs on this machine. A complete job:

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

General rules:

- **Unions.** An object described by *exactly one of* must set exactly one of its fields: `algorithm`
  is `{sft: {...}}` or `{ppo: {...}}`. `{}` is a member with its defaults.
- **Strict types**, as in a Kubernetes API server: `5` is a number, `"5"` is text, `1e-7` is a number.
  Integers are at most 2147483647 unless stated otherwise.
- **No nulls.** A field whose default is `null` may be omitted; an explicit `null` means the same.
- **File paths** are relative to the folder of the job's file, including paths from parameters and overrides.
- **Dependencies between jobs.** A model can be the result of another job, `model: {job: {name: sums}}`.
  The jobs of one file run in the order of these references.
- **Parameters.** `--param NAME=VALUE` replaces `${NAME}` in a value, `${NAME:-default}` has a default, and
  `$${` stands for `${`. Inside `{ }` and `[ ]`, quote the value: `{path: "${DATA}/train.jsonl"}`.
- **Overrides.** `--set spec.seed=2` sets a value in every job of the file, `--set sums:spec.seed=2`
  in one job only. Entries of a list are addressed by index or name: `spec.rewards[0].weight`,
  `spec.rewards.helpful.weight`.
"""

_CLUSTER = """\
## In a cluster

On `kubectl apply`, the API server validates a job against a CustomResourceDefinition that is generated from
this spec: types, bounds, unknown fields, unions, and rules that span several fields. The API server rejects
every job that `kubealign validate` rejects, and names the field. The differences:

- An unknown field is an error in kubectl; for clients without strict field validation, the field is dropped.
- A `null` is dropped, and with `--server-side` it can be rejected: omit the field instead.
- `${NAME}` is not replaced, and the jobs of one file are validated one by one.
- If two fields conflict, the error may name the object that contains one of them.
- Do not mix `kubectl apply` and `kubectl apply --server-side` for one job: use the one that created the job.

The operator checks the conditions that the API server cannot check. Until they are met, the job stays
`Pending`, and `status.message` and the conditions state the reason:

- `checkpoint.volume`, which only a cluster needs, is set, and file paths are absolute;
- the jobs whose results are read exist, have no dependency cycle, and succeed;
- claims, ConfigMaps and Secrets exist, and quota, policies and nodes allow the pods: the fields below
  `affinity`, and the volume of each entry of `volumeMounts`, are validated when a pod is created.

Files, columns, model configs and hub repositories are read by the job's own preparation: if one of them is
invalid, the job fails with an error that names it.

Once a job exists:
"""


def render_page() -> str:
    """Return the text of docs/spec.md."""
    schemas = AlignmentJob.model_json_schema()
    definitions = {**schemas["$defs"], AlignmentJob.__name__: schemas}
    models = list(dict.fromkeys(_walk_models(AlignmentJob)))
    sections = [_render_section(model, definitions[model.__name__]) for model in models]
    return "\n".join([_INTRODUCTION, *sections, _cluster_section(), *_status_sections()])


def _cluster_section() -> str:
    rules = [
        *(f"`{path}` may change;" for path in MUTABLE_IN_CLUSTER),
        *(f"`{path}` may change while `spec.suspend` is true;" for path in MUTABLE_WHILE_SUSPENDED),
        "labels and annotations may change, and apply to pods that are created afterwards;",
        "all other fields are immutable.",
    ]
    return _CLUSTER + "".join(f"\n- {rule}" for rule in rules) + "\n"


def _status_sections() -> list[str]:
    schemas = AlignmentJobStatus.model_json_schema()
    definitions = {**schemas["$defs"], AlignmentJobStatus.__name__: schemas}
    models = list(dict.fromkeys(_walk_models(AlignmentJobStatus)))
    return [_render_section(model, definitions[model.__name__]) for model in models]


def _walk_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        below = _nested_model(field)
        if below is not None:
            yield from _walk_models(below)


def _nested_model(field: FieldInfo) -> type[BaseModel] | None:
    return nested_model(item_type(field.annotation) or field.annotation)


def _render_section(model: type[BaseModel], schema: dict[str, Any]) -> str:
    fields = document_fields(model)
    lines = [f"## {model.__name__}", "", " ".join((model.__doc__ or "").split()), ""]
    if not fields:
        return "\n".join([*lines, "No fields: `{}`.", ""])
    if issubclass(model, SpecUnion):
        default = model.default_member
        default_note = (
            "" if default is None else f"; `{{}}` stands for `{{{field_alias(model, default)}: {{}}}}`"
        )
        lines += [
            f"Exactly one of{default_note}:",
            "",
            "| Field | Type | Bounds | Meaning |",
            "| --- | --- | --- | --- |",
        ]
    else:
        lines += ["| Field | Type | Default | Bounds | Meaning |", "| --- | --- | --- | --- | --- |"]
    for name, field in fields.items():
        cells = [
            f"`{name}`",
            describe_type(field.annotation, _link),
            describe_bounds(schema["properties"][name]),
            describe_meaning(field),
        ]
        if not issubclass(model, SpecUnion):
            cells.insert(2, describe_default(field))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _link(model: str) -> str:
    return f"[{model}](#{model.lower()})"


if __name__ == "__main__":
    print_or_write(render_page)
