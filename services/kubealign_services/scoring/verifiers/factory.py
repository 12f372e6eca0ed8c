"""Creates the verifier that the spec names."""

from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign.spec.sections.verifiers import (
    FormatTagsVerifier,
    InstructionsVerifier,
    JsonSchemaVerifier,
    LengthVerifier,
    MathVerifier,
    MultipleChoiceVerifier,
    RegexVerifier,
)
from kubealign.spec.sections.verifiers import Verifier as VerifierSpec
from kubealign_services.scoring.verifiers.contract import BatchVerifier, Verifier
from kubealign_services.scoring.verifiers.format_tags import FormatTags
from kubealign_services.scoring.verifiers.length import length_verifier
from kubealign_services.scoring.verifiers.multiple_choice import MultipleChoice
from kubealign_services.scoring.verifiers.regular_expression import RegexMatch
from kubealign_services.scoring.verifiers.repetition import Repetition


def make_verifier(spec: VerifierSpec) -> Verifier | BatchVerifier:
    """Create the verifier.

    Raises ValueError for a JSON schema that is none, or where no sandbox can be made.
    """
    rule = spec.value
    match rule:
        case MathVerifier():
            # Libraries of some rules take a second to import.
            from kubealign_services.scoring.verifiers.mathematics import MathAnswer

            return MathAnswer(rule)
        case JsonSchemaVerifier():
            from kubealign_services.scoring.verifiers.json_document import JsonDocument

            return JsonDocument(rule)
        case CodeVerifier():
            from kubealign_services.scoring.verifiers.program_tests import ProgramTests

            return ProgramTests(rule)
        case InstructionsVerifier():
            from kubealign_services.scoring.verifiers.instructions.verifier import InstructionFollowing

            return InstructionFollowing(rule)
        case MultipleChoiceVerifier():
            return MultipleChoice(rule)
        case RegexVerifier():
            return RegexMatch(rule)
        case FormatTagsVerifier():
            return FormatTags(rule)
        case LengthVerifier():
            return length_verifier(rule)
        case _:
            return Repetition(rule)
