"""What TensorRT-LLM answers, in our terms; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.generation.outside.contract import Drawn


def drawn_of(completion: Any) -> Drawn:
    """completion: a CompletionOutput with `logprobs` 0. Raises ValueError where a token came without its
    log-probability."""
    tokens = [int(token) for token in completion.token_ids]
    return Drawn(tokens, chosen(tokens, completion.logprobs))


def chosen(tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | float] | None) -> list[float]:
    """The log-probability of each token: told plainly, or among others of its place."""
    if logprobs is None or len(logprobs) != len(tokens):
        told = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {told} log-probabilities")
    found = []
    for place, (token, told_here) in enumerate(zip(tokens, logprobs, strict=True)):
        if isinstance(told_here, Mapping):
            if token not in told_here:
                raise ValueError(f"token {token} at place {place} came without its log-probability")
            found.append(float(told_here[token].logprob))
        else:
            found.append(float(told_here))
    return found
