"""Rules of responses with several sequences, which span several fields of a spec."""

from collections.abc import Iterator
from typing import Any

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.base import field_alias
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.rollout import Rollout

#: Message for an algorithm that needs one sequence for each response, after its name.
NEEDS_ONE_SEQUENCE = "needs one sequence for each response: write 1, or choose an algorithm such as grpo"


def check_branches(algorithm: Algorithm, rollout: Rollout) -> Iterator[tuple[DocumentPath, Any, str]]:
    """Yield the error of responses with several sequences where the algorithm needs one."""
    if rollout.max_sequences_per_sample > 1 and not algorithm.value.accepts_branches:
        text = f"{field_alias(Algorithm, algorithm.member)} {NEEDS_ONE_SEQUENCE}"
        yield ("rollout", "maxSequencesPerSample"), rollout.max_sequences_per_sample, text
