"""The CustomResourceDefinition: a structural schema equivalent to the models."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from kubealign.spec.base import SpecModel, SpecUnion
from kubealign.spec.mutable_fields import MUTABLE_WHILE_SUSPENDED
from kubealign_operator.crd.cel import cel_string
from kubealign_operator.crd.cross_field_rules import cross_field_rules
from kubealign_operator.crd.definition import crd_manifest, definition, job_schema
from kubealign_operator.crd.immutability_rules import immutability_rules
from kubealign_operator.crd.model_rules import model_rules
from kubealign_operator.crd.schema import SchemaEmitter, walk_schema

FILE = Path(__file__).parents[4] / "charts/kubealign/files/alignmentjobs.kubealign.dev.yaml"


def emitted(model: type[BaseModel]) -> dict[str, Any]:
    return SchemaEmitter.for_model(model, model_rules(model)).object_schema(model)


def rules(at: str) -> list[dict[str, Any]]:
    return list(dict(walk_schema(job_schema()))[at]["x-kubernetes-validations"])


def test_the_charts_file_is_up_to_date() -> None:
    assert FILE.read_text() == crd_manifest(), "run: make crd"


@pytest.mark.slow
def test_the_definition_fits_etcd_and_helm() -> None:
    # etcd accepts 1.5 MiB of JSON, and Helm stores a compressed release in a Secret of at most 1 MiB.
    text = FILE.read_bytes()
    assert len(json.dumps(yaml.load(text, Loader=yaml.CSafeLoader))) < 1_200_000
    assert len(gzip.compress(text)) < 200_000


def test_only_keywords_of_structural_schemas() -> None:
    for path, part in walk_schema(job_schema()):
        keys = set(part)
        assert not keys & {"$ref", "$defs", "title", "const", "prefixItems", "oneOf", "allOf", "nullable"}, (
            path
        )
        assert "anyOf" not in keys or part.get("x-kubernetes-int-or-string") is True, path
        assert "type" in keys or "x-kubernetes-int-or-string" in keys, path


def test_everything_in_the_spec_is_bounded() -> None:
    unbounded = [
        path for path, part in walk_schema(job_schema()["properties"]["spec"], "spec") if not _bounded(part)
    ]
    assert unbounded == []


def _bounded(part: dict[str, Any]) -> bool:
    match part.get("type"):
        case "string":
            return bool({"enum", "maxLength"} & set(part))
        case "array":
            return "maxItems" in part
        case "integer":
            return "minimum" in part and "maximum" in part
        case "object" if "properties" not in part:
            free = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & set(part)
            return not free or "maxProperties" in part
        case _:
            return True


def test_every_rule_names_an_existing_field() -> None:
    known = dict(walk_schema(job_schema()))
    for path, part in known.items():
        for rule in part.get("x-kubernetes-validations", []):
            named = path + rule.get("fieldPath", "")
            assert named.lstrip(".") in known, (path, rule)
            assert rule["message"], path


def test_the_rules_of_a_spec_are_distinct() -> None:
    spec_rules = [(rule["rule"], rule["message"]) for rule in rules("spec")]
    assert len(spec_rules) == len(set(spec_rules)) == len([*cross_field_rules(), *immutability_rules()])


class _Choice(SpecUnion):
    default_member = "left"

    left: int | None = Field(None, ge=0, le=9, description="One.")
    right: str | None = Field(None, max_length=9, description="The other.")


class _Sides(SpecModel):
    """Has two
    sides."""

    choice: _Choice = Field(_Choice(left=3), description="Which.")
    pair: tuple[float, float] = Field((0.5, 1.0), description="Two numbers.")
    named: dict[str, int] | None = Field(None, max_length=4, description="By name.")


def test_a_model_becomes_a_schema() -> None:
    sides = emitted(_Sides)
    assert sides["description"] == "Has two sides."
    assert "required" not in sides
    choice = sides["properties"]["choice"]
    assert choice["default"] == {"left": 3}
    assert choice["properties"]["left"] == {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": 9,
        "description": "One.",
    }
    (rule,) = choice["x-kubernetes-validations"]
    assert rule["rule"] == "[has(self.left), has(self.right)].filter(set, set).size() <= 1"
    assert rule["message"] == "exactly one of left, right must be set; several are set: remove all but one"
    assert sides["properties"]["pair"] == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"type": "number"},
        "description": "Two numbers.",
        "default": [0.5, 1.0],
    }
    named = sides["properties"]["named"]
    assert named["additionalProperties"] == {"type": "integer", "format": "int64"}
    assert "default" not in named


class _Null(SpecModel):
    bound: float | None = Field(1.0, description="null: none.")


class _Either(SpecModel):
    value: int | str = Field(1, description="One or the other.")


@pytest.mark.parametrize(
    ("model", "says"),
    [(_Null, "null must mean an absent field"), (_Either, "a field must have one type or null")],
)
def test_unsupported_field_types_are_rejected(model: type[BaseModel], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        emitted(model)


def test_cel_strings_are_quoted() -> None:
    assert cel_string(r"it's a \w") == r"'it\'s a \\w'"


def test_only_fields_read_by_the_operator_are_mutable() -> None:
    fixed = {rule.field_path for rule in immutability_rules()}
    assert not fixed & {".suspend", ".lifecycle", ".lifecycle.maxRestarts", ".rollout", ".rollout.replicas"}
    assert {".seed", ".maxSteps", ".policy", ".lifecycle.maxFailedGroups"} <= fixed
    assert {".checkpoint.volume", ".checkpoint.uri", ".checkpoint.from", ".checkpoint.everySteps"} <= fixed
    assert {".rollout.sampling", ".rollout.minReplicas", ".podTemplate", ".trainer.ranks"} <= fixed
    suspended = {rule.field_path for rule in immutability_rules() if "self.suspend" in rule.expression}
    assert suspended == {path.removeprefix("spec") for path in MUTABLE_WHILE_SUSPENDED}


def test_scale_and_column_paths_exist() -> None:
    (version,) = definition()["spec"]["versions"]
    known = dict(_paths())
    scale = version["subresources"]["scale"]
    for path in (*scale.values(), *(column["jsonPath"] for column in version["additionalPrinterColumns"])):
        assert path == ".metadata.creationTimestamp" or path in known, path
    assert [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column] == [
        "Phase",
        "Step",
        "Reward",
        "Age",
    ]


def _paths() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, part in walk_schema(job_schema()):
        yield f".{path}", part
