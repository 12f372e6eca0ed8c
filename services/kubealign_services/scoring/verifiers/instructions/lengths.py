"""Lengths of a response in sentences, paragraphs and words."""

from kubealign_services.scoring.verifiers.instructions.instruction import (
    InstructionVerdict,
    counted,
    is_in_relation,
    quoted,
)
from kubealign_services.scoring.verifiers.instructions.segmentation import sentences_of, words_of

_DIVIDER = "***"
#: Characters that end the first word of a paragraph.
_WORD_ENDS = ".,?!'\""


def check_number_of_sentences(response: str, num_sentences: int, relation: str) -> InstructionVerdict:
    """Return whether there are less than, or at least `num_sentences` sentences."""
    count = len(sentences_of(response))
    return InstructionVerdict(
        is_in_relation(count, relation, num_sentences),
        f"{relation} {num_sentences}; {counted(count, 'sentence')}",
    )


def check_number_of_words(response: str, num_words: int, relation: str) -> InstructionVerdict:
    """Return whether there are less than, or at least `num_words` words."""
    count = len(words_of(response))
    return InstructionVerdict(
        is_in_relation(count, relation, num_words), f"{relation} {num_words}; {counted(count, 'word')}"
    )


def check_number_of_paragraphs(response: str, num_paragraphs: int) -> InstructionVerdict:
    """Return whether dividers separate exactly `num_paragraphs` paragraphs.

    A divider may also begin or end the response; two in succession are an error of the form.
    """
    parts = [part.strip() for part in response.split(_DIVIDER)]
    if not all(parts[1:-1]):
        return InstructionVerdict(False, f"exactly {num_paragraphs}; nothing between two dividers")
    count = sum(1 for part in parts if part)
    return InstructionVerdict(
        count == num_paragraphs,
        f"exactly {num_paragraphs}; {counted(count, 'paragraph')} between the dividers {_DIVIDER}",
    )


def check_first_word_of_paragraph(
    response: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> InstructionVerdict:
    """Return whether empty lines separate exactly `num_paragraphs` paragraphs, and the n-th begins with the
    word, in either case.

    Blank paragraphs do not count as paragraphs, but count for the position, as in the reference.
    """
    paragraphs = response.split("\n\n")
    count = sum(1 for paragraph in paragraphs if paragraph.strip())
    paragraph = paragraphs[nth_paragraph - 1] if nth_paragraph <= count else ""
    word = _first_word(paragraph)
    return InstructionVerdict(
        count == num_paragraphs and word == first_word.lower(),
        f"exactly {num_paragraphs}, {quoted(first_word)} begins number {nth_paragraph}; "
        f"{counted(count, 'paragraph')}, {quoted(word)} begins number {nth_paragraph}",
    )


def _first_word(paragraph: str) -> str:
    """Return the first word in small letters, without quotation marks, up to its punctuation."""
    words = paragraph.split()
    word = words[0].lstrip("'").lstrip('"') if words else ""
    end = next((index for index, character in enumerate(word) if character in _WORD_ENDS), len(word))
    return word[:end].lower()
