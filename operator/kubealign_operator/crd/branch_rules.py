"""CEL rules of responses with several sequences, as `kubealign.spec.workflows.branch_checks`."""

from collections.abc import Iterator

from kubealign.spec.algorithms import AlgorithmSpec
from kubealign.spec.sections.rollout import NOTHING_BRANCHES
from kubealign.spec.workflows.branch_checks import one_sequence_message
from kubealign_operator.crd.cel import CelRule, implies


def branch_rules() -> Iterator[CelRule]:
    """Yield the rules of `rollout`."""
    yield CelRule(
        "self.maxSequencesPerSample == 1 || (has(self.workflow) && has(self.workflow.function))",
        NOTHING_BRANCHES,
        field_path=".maxSequencesPerSample",
    )


def branch_algorithm_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    """Yield the rule that an algorithm needs one sequence for each response."""
    if not model.accepts_branches:
        yield CelRule(
            implies(algorithm_is_set, "self.rollout.maxSequencesPerSample == 1"),
            one_sequence_message(name),
            field_path=".rollout.maxSequencesPerSample",
        )
