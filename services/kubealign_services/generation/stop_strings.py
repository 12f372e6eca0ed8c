"""Stop strings: searches a response's text token by token for the first of them."""

from collections.abc import Callable, Sequence

# Output of a decoder for bytes that do not (yet) form a character.
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, so a token this many back cannot depend on the next one any more.
MAX_PENDING_TOKENS = 8
# Tokens decoded together before the window moves on; some decoders need earlier tokens for correct spaces.
WINDOW_TOKENS = 16


class StopStrings:
    """Finds the first of `stop` to appear in the text of one response, across token boundaries.

    `push` decodes only the last few tokens; `scan` handles several new tokens at once. Use one of the two
    for a response.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: tuple[str, ...]) -> None:
        self._decode = decode
        self._stop = stop
        self._text = ""
        self._window_start = 0
        self._window_text = ""
        self._settled = 0
        self._searched = 0
        self._scanned = 0

    def scan(self, tokens: Sequence[int], min_tokens: int) -> tuple[int, str] | None:
        """Search several new tokens, with the same result as pushing each of them.

        Returns the number of tokens up to the one that completed a stop string, and the text before the
        string; or None. A stop string completed before the `min_tokens`-th token does not count.

        Args:
            tokens: The whole response so far, any number longer than at the last call.
        """
        first, self._scanned = self._scanned + 1, len(tokens)
        if self._settle_if_clean(tokens):
            return None
        for count in range(first, len(tokens) + 1):
            text = self.push(tokens[:count], may_stop=count >= min_tokens)
            if text is not None:
                return count, text
        return None

    def _settle_if_clean(self, tokens: Sequence[int]) -> bool:
        """Return True where the new tokens, decoded together, contain no stop string and only complete
        characters; they are settled then.
        """
        decoded = self._decode(tokens[self._window_start :])
        fresh = decoded[len(self._window_text) :]
        text = self._text + fresh
        if UNDECODABLE in fresh or self._find(text) >= 0:
            return False
        self._searched = len(text)
        self._settle(tokens, text, decoded)
        return True

    def push(self, tokens: Sequence[int], may_stop: bool) -> str | None:
        """Return the text before the stop string that the newest token completed, or None.

        Args:
            tokens: The whole response so far, one token longer at each call.
            may_stop: False: a stop string that this token completes does not count, now or later.
        """
        decoded = self._decode(tokens[self._window_start :])
        fresh = decoded[len(self._window_text) :]
        pending = fresh.endswith(UNDECODABLE) and len(tokens) - self._settled < MAX_PENDING_TOKENS
        # The text before an unfinished character is final.
        text = self._text + (fresh.rstrip(UNDECODABLE) if pending else fresh)
        cut = self._find(text) if may_stop else -1
        self._searched = len(text)
        if not pending:
            self._settle(tokens, text, decoded)
        return text[:cut] if cut >= 0 else None

    def _settle(self, tokens: Sequence[int], text: str, decoded: str) -> None:
        """Mark the tokens' text as final: `text` in all, `decoded` for the tokens of the window."""
        self._text, self._window_text = text, decoded
        if len(tokens) - self._window_start > WINDOW_TOKENS:
            self._window_start = self._settled
            self._window_text = self._decode(tokens[self._window_start :])
        self._settled = len(tokens)

    def _find(self, text: str) -> int:
        """Return the start of the first stop string that ends in text not searched before; -1 where there is
        none.
        """
        starts = (text.find(stop, max(0, self._searched - len(stop) + 1)) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=-1)
