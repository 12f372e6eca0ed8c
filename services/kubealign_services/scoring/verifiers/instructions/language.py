"""Language of a response, by py3langid, and its capital letters."""

from functools import cache

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from kubealign_services.scoring.verifiers.instructions.instruction import (
    InstructionVerdict,
    counted,
    is_in_relation,
)
from kubealign_services.scoring.verifiers.instructions.segmentation import tokens_of

#: ISO 639-1 codes of the languages that can be recognised: those of the reference's library, which has two
#: scripts of Chinese. The model knows more, some of them easily taken for these.
LANGUAGES = (
    "af", "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa",
    "fi", "fr", "gu", "he", "hi", "hr", "hu", "id", "it", "ja", "kn", "ko", "lt", "lv",
    "mk", "ml", "mr", "ne", "nl", "no", "pa", "pl", "pt", "ro", "ru", "sk", "sl", "so",
    "sq", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "zh",
)  # fmt: skip
_ENGLISH = "en"


@cache
def _identifier() -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages(LANGUAGES)
    return identifier


def identify_language(text: str) -> str | None:
    """Return the most probable one of LANGUAGES; None for a text without letters."""
    if not any(map(str.isalpha, text)):
        return None
    language, _ = _identifier().classify(text)
    return str(language)


def check_language(response: str, language: str) -> InstructionVerdict:
    """Return whether the response is in the language, or has no letters."""
    recognised = identify_language(response)
    return InstructionVerdict(recognised in (language, None), f"{language}; recognised {recognised}")


def check_english_capitals(response: str) -> InstructionVerdict:
    """Return whether the response is in English, and all letters are capital."""
    if not response.isupper():
        return InstructionVerdict(False, "not all letters are capital")
    return _check_english(response)


def check_english_lowercase(response: str) -> InstructionVerdict:
    """Return whether the response is in English, and all letters are small."""
    if not response.islower():
        return InstructionVerdict(False, "not all letters are small")
    return _check_english(response)


def check_capital_words(response: str, capital_frequency: int, capital_relation: str) -> InstructionVerdict:
    """Return whether there are less than, or at least `capital_frequency` words in capital letters."""
    count = sum(1 for token in tokens_of(response) if token.isupper())
    return InstructionVerdict(
        is_in_relation(count, capital_relation, capital_frequency),
        f"{capital_relation} {capital_frequency}; {counted(count, 'word')} in capital letters",
    )


def _check_english(response: str) -> InstructionVerdict:
    recognised = identify_language(response)
    return InstructionVerdict(recognised in (_ENGLISH, None), f"{_ENGLISH}; recognised {recognised}")
