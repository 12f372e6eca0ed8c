"""Sentences and words of a text, as NLTK splits it.

Punkt's English model is part of the package punkt, and the word tokenizer of NLTK has no model: neither needs
a download.
"""

import re
from functools import cache

import punkt
from nltk.tokenize.destructive import NLTKWordTokenizer

_WORD = re.compile(r"\w+")
_TOKENIZER = NLTKWordTokenizer()


@cache
def _sentence_tokenizer() -> punkt.PunktSentenceTokenizer:
    return punkt.tokenizer_for("english")


def sentences_of(text: str) -> list[str]:
    """Return the sentences by Punkt's English model (Kiss and Strunk 2006), whatever the language is."""
    return _sentence_tokenizer().tokenize(text)


def words_of(text: str) -> list[str]:
    """Return the longest sequences of letters, digits and underscores."""
    return _WORD.findall(text)


def tokens_of(text: str) -> list[str]:
    """Return the tokens of NLTK's word tokenizer: punctuation is apart, and "DON'T" is "DO" and "N'T"."""
    return [token for sentence in sentences_of(text) for token in _TOKENIZER.tokenize(sentence)]
