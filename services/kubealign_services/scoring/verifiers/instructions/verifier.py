"""Verifier of the instructions of a row."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.spec.sections.verifiers import InstructionCriterion, InstructionsVerifier
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.verifiers.instructions.instruction import InstructionVerdict
from kubealign_services.scoring.verifiers.instructions.language import identify_language
from kubealign_services.scoring.verifiers.instructions.rows import RowInstruction, read_instructions
from kubealign_services.scoring.verifiers.instructions.segmentation import sentences_of


class InstructionFollowing:
    """1 for a response that follows all instructions of its row, or the share that it follows."""

    def __init__(self, spec: InstructionsVerifier) -> None:
        self._spec = spec
        # The first use loads the models, which must not count as the time of a response.
        identify_language("English")
        sentences_of("One sentence.")

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        """Raises UnusableRow for an unknown instruction, and for parameters that are missing or wrong."""
        instructions = read_instructions(row, self._spec.ids_column, self._spec.kwargs_column)
        if instructions is None:
            return RewardResult(None)
        is_loose = self._spec.criterion is InstructionCriterion.LOOSE
        variants = loose_variants(response) if is_loose else [response]
        verdicts = [_verdict(instruction, response, variants) for instruction in instructions]
        followed = sum(verdict.followed for verdict in verdicts)
        total = len(instructions)
        return RewardResult(
            followed / total if self._spec.partial else float(followed == total),
            metrics={"instructions.followed": followed, "instructions.total": total},
            explanation=_explanation(instructions, verdicts),
        )


def loose_variants(response: str) -> list[str]:
    """Return the response, and the response without its first line, its last line and both, each with and
    without its asterisks: the eight variants of the paper's loose accuracy, of which any may follow an
    instruction. Equal ones are left out.
    """
    lines = response.split("\n")
    parts = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*parts, *(part.replace("*", "") for part in parts)]))


def _verdict(instruction: RowInstruction, response: str, variants: Sequence[str]) -> InstructionVerdict:
    """Return the first verdict that is positive, else that of the response as it is."""
    if not response.strip():
        return InstructionVerdict(False, "the response is blank")
    first = instruction.check(response)
    if first.followed:
        return first
    # A blank variant follows nothing, not even an instruction to leave something out.
    rest = (instruction.check(variant) for variant in variants if variant.strip() and variant != response)
    return next((verdict for verdict in rest if verdict.followed), first)


def _explanation(instructions: Sequence[RowInstruction], verdicts: Sequence[InstructionVerdict]) -> str:
    failures = [
        f"{instruction.id} ({verdict.reading})"
        for instruction, verdict in zip(instructions, verdicts, strict=True)
        if not verdict.followed
    ]
    return f"not followed: {', '.join(failures)}"[:MAX_EXPLANATION] if failures else ""
