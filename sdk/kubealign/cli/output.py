"""Prints jobs as JSON, YAML and names, for -o json, -o yaml and -o name."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from kubealign.cli.options import OutputFormat

if TYPE_CHECKING:
    from kubealign.client.records import JobRecord

_CONTROL_CHARACTERS = re.compile(r"[\x7f-\x9f]")


def format_json(value: Any, *, indent: int | None = 2) -> str:
    """Format as JSON, indented or in one line; terminal control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def format_yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000).rstrip("\n")


def print_document(record: "JobRecord", format_: OutputFormat) -> None:
    """Print one job as JSON, as YAML, or its name."""
    _print(dict(record.resource), [record], format_)


def print_list(records: Sequence["JobRecord"], format_: OutputFormat) -> None:
    """Print jobs as an AlignmentJobList, or their names."""
    from kubealign.spec.job import API_VERSION, KIND

    document = {
        "apiVersion": API_VERSION,
        "kind": f"{KIND}List",
        "metadata": {"resourceVersion": ""},
        "items": [dict(record.resource) for record in records],
    }
    _print(document, records, format_)


def _print(document: Mapping[str, Any], records: Sequence["JobRecord"], format_: OutputFormat) -> None:
    if format_ is OutputFormat.NAME:
        for record in records:
            typer.echo(f"alignmentjob.kubealign.dev/{record.name}")
    else:
        typer.echo(format_json(document) if format_ is OutputFormat.JSON else format_yaml(document))
