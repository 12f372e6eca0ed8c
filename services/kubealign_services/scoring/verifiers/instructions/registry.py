"""Instructions by the ids of the IFEval data set."""

from collections.abc import Mapping
from types import MappingProxyType

from kubealign_services.scoring.verifiers.instructions import content, formats, keywords, language, lengths
from kubealign_services.scoring.verifiers.instructions.instruction import Instruction
from kubealign_services.scoring.verifiers.instructions.parameters import (
    CHARACTER,
    COUNT,
    POSITION,
    RELATION,
    TEXT,
    TEXTS,
    one_of,
)

#: Id -> instruction.
INSTRUCTIONS: Mapping[str, Instruction] = MappingProxyType(
    {
        "change_case:capital_word_frequency": Instruction(
            language.check_capital_words, {"capital_frequency": COUNT, "capital_relation": RELATION}
        ),
        "change_case:english_capital": Instruction(language.check_english_capitals),
        "change_case:english_lowercase": Instruction(language.check_english_lowercase),
        "combination:repeat_prompt": Instruction(content.check_repeated_prompt, {"prompt_to_repeat": TEXT}),
        "combination:two_responses": Instruction(content.check_two_responses),
        "detectable_content:number_placeholders": Instruction(
            content.check_placeholders, {"num_placeholders": COUNT}
        ),
        "detectable_content:postscript": Instruction(content.check_postscript, {"postscript_marker": TEXT}),
        "detectable_format:constrained_response": Instruction(formats.check_constrained_answer),
        "detectable_format:json_format": Instruction(formats.check_json),
        "detectable_format:multiple_sections": Instruction(
            formats.check_sections, {"section_spliter": TEXT, "num_sections": COUNT}
        ),
        "detectable_format:number_bullet_lists": Instruction(formats.check_bullets, {"num_bullets": COUNT}),
        "detectable_format:number_highlighted_sections": Instruction(
            formats.check_highlights, {"num_highlights": COUNT}
        ),
        "detectable_format:title": Instruction(formats.check_title),
        "keywords:existence": Instruction(keywords.check_existence, {"keywords": TEXTS}),
        "keywords:forbidden_words": Instruction(keywords.check_forbidden_words, {"forbidden_words": TEXTS}),
        "keywords:frequency": Instruction(
            keywords.check_frequency, {"keyword": TEXT, "frequency": COUNT, "relation": RELATION}
        ),
        "keywords:letter_frequency": Instruction(
            keywords.check_letter_frequency,
            {"letter": CHARACTER, "let_frequency": COUNT, "let_relation": RELATION},
        ),
        "language:response_language": Instruction(
            language.check_language, {"language": one_of(*language.LANGUAGES)}
        ),
        "length_constraints:nth_paragraph_first_word": Instruction(
            lengths.check_first_word_of_paragraph,
            {"num_paragraphs": COUNT, "nth_paragraph": POSITION, "first_word": TEXT},
            limit=("nth_paragraph", "num_paragraphs"),
        ),
        "length_constraints:number_paragraphs": Instruction(
            lengths.check_number_of_paragraphs, {"num_paragraphs": COUNT}
        ),
        "length_constraints:number_sentences": Instruction(
            lengths.check_number_of_sentences, {"num_sentences": COUNT, "relation": RELATION}
        ),
        "length_constraints:number_words": Instruction(
            lengths.check_number_of_words, {"num_words": COUNT, "relation": RELATION}
        ),
        "punctuation:no_comma": Instruction(content.check_commas),
        "startend:end_checker": Instruction(content.check_end, {"end_phrase": TEXT}),
        "startend:quotation": Instruction(content.check_quotation),
    }
)
