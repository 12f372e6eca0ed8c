"""CEL rules of responses with several sequences, as `kubealign.spec.workflows.branch_checks`."""

from collections.abc import Iterator

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.base import field_alias
from kubealign.spec.field_lookup import nested_model
from kubealign.spec.sections.rollout import NOTHING_BRANCHES
from kubealign.spec.workflows.branch_checks import NEEDS_ONE_SEQUENCE
from kubealign_operator.crd.cel import CelRule


def branch_rules() -> Iterator[CelRule]:
    """Yield the rules of `rollout`."""
    yield CelRule(
        "self.maxSequencesPerSample == 1 || (has(self.workflow) && (has(self.workflow.function) || "
        "has(self.workflow.agent)))",
        NOTHING_BRANCHES,
        field_path=".maxSequencesPerSample",
    )


def branch_algorithm_rule() -> CelRule:
    """Return the rule that an algorithm needs one sequence for each response: one rule for all of them."""
    accepting = " || ".join(
        f"has(self.algorithm.{field_alias(Algorithm, member)})"
        for member, field in Algorithm.model_fields.items()
        if getattr(nested_model(field.annotation), "accepts_branches", False)
    )
    return CelRule(
        f"self.rollout.maxSequencesPerSample == 1 || {accepting}",
        f"the algorithm {NEEDS_ONE_SEQUENCE}",
        field_path=".rollout.maxSequencesPerSample",
    )
