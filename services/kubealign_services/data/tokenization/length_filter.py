"""Length filter: drops, truncates or rejects rows that are too long. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign.spec.job import AlignmentJobSpec
from kubealign.spec.sections.data import OverlongPolicy
from kubealign_services.data.errors import DataError, RowError


@dataclass(frozen=True)
class TokenBudget:
    """Maximum tokens of a prompt, and of a prompt with its response; None: unbounded."""

    prompt: int | None = None
    sequence: int | None = None


def token_budget(
    context: int | None,
    max_tokens: int | None,
    sampled_tokens: int | None,
    field: str = "spec.rollout.sampling.maxTokens",
) -> TokenBudget:
    """Compute the token budget that the models' context leaves.

    Args:
        context: Tokens.
        max_tokens: The spec's bound on a prompt.
        sampled_tokens: Maximum length of sampled responses; None: nothing is sampled.
        field: Field that sets this length, for the error.

    Raises DataError where responses leave no room for a prompt.
    """
    if context is None:
        return TokenBudget(prompt=max_tokens)
    rest = context - (sampled_tokens or 0)
    if rest < 1:
        raise DataError(
            f"{field} ({sampled_tokens}) leaves no room for a prompt: the context is {context} tokens"
        )
    return TokenBudget(prompt=rest if max_tokens is None else min(rest, max_tokens), sequence=context)


def training_budget(spec: AlignmentJobSpec, context: int | None) -> TokenBudget:
    """Return the token budget of a job's training rows.

    Args:
        context: Tokens of the shortest context of the models; None: unbounded.
    """
    rollout = spec.effective_rollout
    # Rows used only to measure a loss need no room for a sampled response.
    samples = spec.algorithm.value.samples and rollout is not None
    sampled = rollout.sampling.max_tokens if samples and rollout is not None else None
    return token_budget(context, spec.data.value.max_tokens, sampled)


def fit_prompt(
    prompt: Sequence[int],
    response: int,
    space: TokenBudget,
    overlong: OverlongPolicy,
    beginning: int,
    number: int,
) -> list[int] | None:
    """Return the prompt's tokens, truncated where requested; None: the row is dropped.

    Truncate cuts prompts from the left, behind the `beginning` first tokens (those that begin every text),
    and never a response: a response without its end would teach the model not to end. A row whose response
    leaves no room for a prompt is dropped. Fail raises DataError.

    Args:
        response: Tokens of the row's longest response.
        number: Row index, from 0.
    """
    allowed = len(prompt)
    if space.prompt is not None:
        allowed = min(allowed, space.prompt)
    if space.sequence is not None:
        allowed = min(allowed, space.sequence - response)
    if allowed == len(prompt):
        return list(prompt)
    if overlong is OverlongPolicy.FAIL:
        raise RowError(
            number,
            f" is too long: a prompt of {len(prompt)} tokens"
            + (f" and a response of {response}" if response else "")
            + f"; there is room for {_describe_budget(space)} (overlong: Drop or Truncate accepts it)",
        )
    if overlong is OverlongPolicy.DROP or allowed <= beginning:
        return None
    return [*prompt[:beginning], *prompt[len(prompt) - (allowed - beginning) :]]


def _describe_budget(space: TokenBudget) -> str:
    parts = []
    if space.prompt is not None:
        parts.append(f"{space.prompt} in a prompt")
    if space.sequence is not None:
        parts.append(f"{space.sequence} in all")
    return " and ".join(parts)
