"""What vLLM answers, in our terms; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.generation.outside.contract import Drawn


def drawn_of(completion: Any) -> Drawn:
    """completion: a vLLM CompletionOutput with `logprobs` 0, so that each token's own is there. Raises
    ValueError where it is not."""
    tokens = [int(token) for token in completion.token_ids]
    return Drawn(tokens, chosen(tokens, completion.logprobs))


def chosen(tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None] | None) -> list[float]:
    """The log-probability of each token among those that are told of its place."""
    if logprobs is None or len(logprobs) != len(tokens):
        told = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {told} log-probabilities")
    found = []
    for place, (token, told_here) in enumerate(zip(tokens, logprobs, strict=True)):
        if told_here is None or token not in told_here:
            raise ValueError(f"token {token} at place {place} came without its log-probability")
        found.append(float(told_here[token].logprob))
    return found
