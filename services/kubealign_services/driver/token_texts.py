"""A response's tokens, each as the text that it adds."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError

#: Tokens -> text, special tokens written out.
Decode = Callable[[Sequence[int]], str]

# What a decoder writes for bytes that are not (yet) a character.
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most, so a token this many back cannot wait for the next one any more.
_MOST_PENDING = 8

log = logging.getLogger(__name__)


def pieces(tokens: Sequence[int], text: str, decode: Decode) -> list[str]:
    """One piece a token; joined they are `text`, what the tokens say up to a stop string or a special token.

    A token that ends within a character adds nothing: the one that completes the character adds it. Each is
    decoded beside the one before it, since some decoders need that for the right spaces.
    """
    found: list[str] = []
    begin = settled = 0
    for end in range(1, len(tokens) + 1):
        known = decode(tokens[begin:settled])
        fresh = decode(tokens[begin:end])[len(known) :]
        if fresh.endswith(_UNDECODABLE) and end - settled < _MOST_PENDING:
            found.append("")
            continue
        found.append(fresh)
        begin, settled = settled, end
    return _fitted(found, text)


def _fitted(found: list[str], text: str) -> list[str]:
    """Pieces cut where the text ends; the last one takes what decoding in parts has left over."""
    fitted, left = [], text
    for piece in found:
        taken = piece[: len(left)]
        fitted.append(taken if left.startswith(taken) else left[: len(piece)])
        left = left[len(piece) :]
    if fitted and left:
        fitted[-1] += left
    return fitted


def decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """As the rollout engine decodes."""

    def decode(tokens: Sequence[int]) -> str:
        return str(
            tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    return decode


class TokenTexts:
    """Pieces by the job's tokenizer, which `load` reads when the first response is shown."""

    def __init__(self, load: Callable[[], Decode]) -> None:
        self._load = load

    def __call__(self, tokens: Sequence[int], text: str) -> list[str]:
        """As `pieces`; none where the tokenizer cannot be read: what is shown ends no job."""
        return [] if self._decode is None else pieces(tokens, text, self._decode)

    @cached_property
    def _decode(self) -> Decode | None:
        try:
            return self._load()
        except DataError as error:
            log.warning("samples are shown without their tokens", extra={"cause": str(error)})
            return None
