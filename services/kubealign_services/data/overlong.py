"""What becomes of rows that are too long. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign.spec.data import Overlong
from kubealign_services.data.errors import DataError


@dataclass(frozen=True)
class Room:
    """Most tokens of a prompt, and of a prompt with its response; None: unbounded."""

    prompt: int | None = None
    sequence: int | None = None


def room(context: int | None, max_tokens: int | None, sampled_tokens: int | None) -> Room:
    """What the models' context (tokens) leaves. max_tokens: the spec's bound on a prompt.
    sampled_tokens: the longest response that is sampled to it; None: none is. Raises DataError where
    responses leave no room for a prompt."""
    if context is None:
        return Room(prompt=max_tokens)
    left = context - (sampled_tokens or 0)
    if left < 1:
        raise DataError(
            f"spec.rollout.sampling.maxTokens ({sampled_tokens}) leaves no room for a prompt: "
            f"the context is {context} tokens"
        )
    return Room(prompt=left if max_tokens is None else min(left, max_tokens), sequence=context)


def fit(
    prompt: Sequence[int], response: int, space: Room, overlong: Overlong, beginning: int, number: int
) -> list[int] | None:
    """The prompt's tokens, cut where that is asked for; None: the row is dropped.

    response: tokens of its longest response. Truncate cuts prompts from the left, behind the `beginning`
    first tokens (those that begin every text), and never a response: one without its end would teach the
    model not to end. A row whose response leaves no room for a prompt is dropped. Fail raises DataError for
    row `number` (from 0).
    """
    most = len(prompt)
    if space.prompt is not None:
        most = min(most, space.prompt)
    if space.sequence is not None:
        most = min(most, space.sequence - response)
    if most == len(prompt):
        return list(prompt)
    if overlong is Overlong.FAIL:
        raise DataError(
            f"row {number + 1} is too long: a prompt of {len(prompt)} tokens"
            + (f" and a response of {response}" if response else "")
            + f"; there is room for {_bounds(space)} (overlong: Drop or Truncate would go on)"
        )
    if overlong is Overlong.DROP or most <= beginning:
        return None
    return [*prompt[:beginning], *prompt[len(prompt) - (most - beginning) :]]


def _bounds(space: Room) -> str:
    parts = []
    if space.prompt is not None:
        parts.append(f"{space.prompt} in a prompt")
    if space.sequence is not None:
        parts.append(f"{space.sequence} in all")
    return " and ".join(parts)
