"""The CustomResourceDefinition as one document, and as the YAML file of the chart."""

from typing import Any

import yaml

from kubealign.spec.base import JOB_NAME_PATTERN, PATTERN_DESCRIPTIONS
from kubealign.spec.job import GROUP, KIND, VERSION, AlignmentJob, AlignmentJobSpec
from kubealign.spec.status import AlignmentJobStatus
from kubealign_operator.crd.cel import CelRule, cel_string
from kubealign_operator.crd.cross_field_rules import cross_field_rules
from kubealign_operator.crd.immutability_rules import entry_immutability_rules, immutability_rules
from kubealign_operator.crd.model_rules import model_rules
from kubealign_operator.crd.schema import Schema, SchemaEmitter

PLURAL = "alignmentjobs"
NAME = f"{PLURAL}.{GROUP}"
_HEADER = "# Generated from sdk/kubealign/spec by `make crd`.\n"

_NAME_RULES = (
    CelRule("self.metadata.name.size() <= 52", "metadata.name must have at most 52 characters"),
    CelRule(
        f"self.metadata.name.size() > 52 || self.metadata.name.matches({cel_string(JOB_NAME_PATTERN)})",
        f"metadata.name must be {PATTERN_DESCRIPTIONS[JOB_NAME_PATTERN]}",
    ),
)


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition for an API server."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": PLURAL.removesuffix("s"),
                "shortNames": ["aj"],
                "categories": ["kubealign"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": job_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.rollout.replicas",
                            "statusReplicasPath": ".status.rolloutReplicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _PRINTER_COLUMNS,
                }
            ],
        },
    }


def job_schema() -> Schema:
    """Return the structural schema of an AlignmentJob."""
    rules = dict(model_rules(AlignmentJobSpec))
    for model, entry_rules in entry_immutability_rules().items():
        rules[model] = [*rules.get(model, ()), *entry_rules]
    rules[AlignmentJobSpec] = [*cross_field_rules(), *immutability_rules()]
    return {
        "type": "object",
        "description": " ".join((AlignmentJob.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": SchemaEmitter.for_model(AlignmentJobSpec, rules).object_schema(AlignmentJobSpec),
            "status": SchemaEmitter.for_model(AlignmentJobStatus, {}).object_schema(AlignmentJobStatus),
        },
        "x-kubernetes-validations": [rule.to_schema() for rule in _NAME_RULES],
    }


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column


_PRINTER_COLUMNS = [
    _column("Phase", "string", ".status.phase", "Phase of the job's lifecycle."),
    _column("Step", "integer", ".status.step", "The last completed step."),
    _column("Reward", "number", ".status.reward", "Mean reward of the last step."),
    _column("Age", "date", ".metadata.creationTimestamp", "Time since the creation of the job."),
    _column("KL", "number", ".status.kl", "KL divergence from the reference at the last step.", wide=True),
    _column(
        "Weights", "integer", ".status.weightVersion", "Weight version of the rollout workers.", wide=True
    ),
    _column("Message", "string", ".status.message", "Reason for which the job waits or failed.", wide=True),
]


class _NoAliasDumper(yaml.SafeDumper):
    """YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def crd_manifest() -> str:
    """Return the YAML text, in a stable order."""
    return _HEADER + yaml.dump(
        definition(), Dumper=_NoAliasDumper, sort_keys=False, allow_unicode=True, width=110
    )
