"""Splits the text of a response into the piece that each token adds."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError

#: Tokens -> text, special tokens written out.
Decode = Callable[[Sequence[int]], str]

# Decoders write this for bytes that are not (yet) a character.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most, so a token this many positions back cannot be incomplete any more.
_MAX_PENDING_TOKENS = 8

log = logging.getLogger(__name__)


def split_by_token(tokens: Sequence[int], text: str, decode: Decode) -> list[str]:
    """Return one piece per token. Joined, the pieces are `text`, which ends at a stop string or a special
    token.

    A token that ends within a character adds nothing: the token that completes the character adds it. Each
    token is decoded together with the one before it, since some decoders need that for the right spaces.
    """
    texts: list[str] = []
    begin = settled = 0
    for end in range(1, len(tokens) + 1):
        settled_text = decode(tokens[begin:settled])
        new_text = decode(tokens[begin:end])[len(settled_text) :]
        if new_text.endswith(_REPLACEMENT) and end - settled < _MAX_PENDING_TOKENS:
            texts.append("")
            continue
        texts.append(new_text)
        begin, settled = settled, end
    return _fit_to_text(texts, text)


def _fit_to_text(parts: list[str], text: str) -> list[str]:
    """Cut the pieces at the end of the text; the last piece takes the text that partial decoding has left
    over.
    """
    fitted, remaining = [], text
    for piece in parts:
        cut = piece[: len(remaining)]
        fitted.append(cut if remaining.startswith(cut) else remaining[: len(piece)])
        remaining = remaining[len(piece) :]
    if fitted and remaining:
        fitted[-1] += remaining
    return fitted


def make_decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Return a decode function that works like the rollout engine's."""

    def decode(tokens: Sequence[int]) -> str:
        return str(
            tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    return decode


class TokenSplitter:
    """Splits responses by token with the job's tokenizer, which `load` reads for the first response."""

    def __init__(self, load: Callable[[], Decode]) -> None:
        self._load = load

    def __call__(self, tokens: Sequence[int], text: str) -> list[str]:
        """Return the pieces as `split_by_token`; none if the tokenizer cannot be read, since previews must
        not fail a job.
        """
        return [] if self._decode is None else split_by_token(tokens, text, self._decode)

    @cached_property
    def _decode(self) -> Decode | None:
        try:
            return self._load()
        except DataError as error:
            log.warning("samples are shown without their tokens", extra={"cause": str(error)})
            return None
