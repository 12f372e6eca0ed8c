"""Stop strings: a response's text is followed token by token until one of them appears."""

from collections.abc import Callable, Sequence

# What a decoder writes for bytes that are not (yet) a character.
UNDECODABLE = "\N{REPLACEMENT CHARACTER}"
# A character has four bytes at most, so a token this many back cannot wait for the next one any more.
MOST_PENDING = 8
# Tokens decoded together before the window moves on; some decoders need the ones before for the right spaces.
WINDOW = 16


class StopStrings:
    """The first of `stop` to appear in the text of one response, wherever tokens begin and end.

    decode: tokens -> text. Each `push` decodes the last few tokens only; `follow` looks at several new tokens
    at once. A response is followed by one of the two.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: tuple[str, ...]) -> None:
        self._decode = decode
        self._stop = stop
        self._text = ""
        self._window_start = 0
        self._window_text = ""
        self._settled = 0
        self._searched = 0
        self._followed = 0

    def follow(self, tokens: Sequence[int], min_tokens: int) -> tuple[int, str] | None:
        """tokens: the whole response so far, any number longer than at the last call. As if each new token
        had been pushed: how many tokens there are up to the one that completed a stop string, and the text
        before it; or None. What is completed by a token before the `min_tokens`-th does not count."""
        first, self._followed = self._followed + 1, len(tokens)
        if self._nothing_new(tokens):
            return None
        for made in range(first, len(tokens) + 1):
            text = self.push(tokens[:made], may_stop=made >= min_tokens)
            if text is not None:
                return made, text
        return None

    def _nothing_new(self, tokens: Sequence[int]) -> bool:
        """Whether the new tokens, decoded together, hold no stop string and only whole characters. Then they
        are settled."""
        decoded = self._decode(tokens[self._window_start :])
        fresh = decoded[len(self._window_text) :]
        text = self._text + fresh
        if UNDECODABLE in fresh or self._find(text) >= 0:
            return False
        self._searched = len(text)
        self._settle(tokens, text, decoded)
        return True

    def push(self, tokens: Sequence[int], may_stop: bool) -> str | None:
        """tokens: the whole response so far, one longer at each call. Returns the text before the stop string
        that the newest token completed, or None. Where `may_stop` is false, what this token completed does
        not count, now or later."""
        decoded = self._decode(tokens[self._window_start :])
        fresh = decoded[len(self._window_text) :]
        pending = fresh.endswith(UNDECODABLE) and len(tokens) - self._settled < MOST_PENDING
        # What precedes an unfinished character is text already.
        text = self._text + (fresh.rstrip(UNDECODABLE) if pending else fresh)
        cut = self._find(text) if may_stop else -1
        self._searched = len(text)
        if not pending:
            self._settle(tokens, text, decoded)
        return text[:cut] if cut >= 0 else None

    def _settle(self, tokens: Sequence[int], text: str, decoded: str) -> None:
        """The tokens' text is `text`, that of those in the window `decoded`; none will change."""
        self._text, self._window_text = text, decoded
        if len(tokens) - self._window_start > WINDOW:
            self._window_start = self._settled
            self._window_text = self._decode(tokens[self._window_start :])
        self._settled = len(tokens)

    def _find(self, text: str) -> int:
        """Where the first stop string begins that ends in what was not searched before; -1: nowhere."""
        found = (text.find(stop, max(0, self._searched - len(stop) + 1)) for stop in self._stop)
        return min((at for at in found if at >= 0), default=-1)
