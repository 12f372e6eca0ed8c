"""Division of responses into steps, and the tokens with which the steps end."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Text of token ids, special tokens included, as the engine decodes a response.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class ResponseStep:
    """A step of a response. end: offset in characters of the step after it, or the response's length."""

    text: str
    end: int


def split_steps(response: str, separator: str) -> list[ResponseStep]:
    """Return the parts of a response between separators that are not white space alone.

    A separator, and a part of white space, belong to the step before them; before the first step they belong
    to none. A response of white space has no steps.
    """
    steps: list[ResponseStep] = []
    end = 0
    parts = response.split(separator)
    for index, part in enumerate(parts):
        end += len(part) + (len(separator) if index < len(parts) - 1 else 0)
        if part.strip():
            steps.append(ResponseStep(part, end))
        elif steps:
            steps[-1] = ResponseStep(steps[-1].text, end)
    return steps


def find_last_tokens(
    steps: Sequence[ResponseStep], response: str, tokens: Sequence[int], decode: Decode
) -> list[int]:
    """Return the index of the last token of each step among the tokens of the response, ascending.

    A step ends with the first token after which the decoded tokens begin with the response up to the step's
    end: a token may hold the end of one step and the beginning of the next, and a character may have several
    tokens. The last step ends with the last token, so that it has the end token and a stop string's text.

    Args:
        response: Text of which `steps` are the steps: the decoded tokens, or a beginning of them.
        tokens: Ids of the response, at least one.

    Raises:
        ValueError: The decoded tokens do not begin with the response.
    """
    if not steps:
        return []
    if not tokens or not decode(tokens).startswith(response[: steps[-1].end]):
        raise ValueError(f"the text of the {len(tokens)} tokens does not begin with the response")
    last_tokens: list[int] = []
    for step in steps[:-1]:
        prefix = response[: step.end]

        def has_ended(count: int, prefix: str = prefix) -> bool:
            return decode(tokens[:count]).startswith(prefix)

        earliest = last_tokens[-1] + 1 if last_tokens else 1
        count = bisect_left(range(len(tokens)), True, lo=earliest, key=has_ended)
        last_tokens.append(count - 1)
    return [*last_tokens, len(tokens) - 1]
