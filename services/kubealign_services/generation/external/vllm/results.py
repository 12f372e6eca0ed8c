"""Conversion of vLLM's outputs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.generation.external.contract import ExternalSample


def to_external_sample(completion: Any) -> ExternalSample:
    """Convert a vLLM CompletionOutput that was requested with `logprobs` 0, so it has the log-probability of
    each token.

    Raises ValueError where a log-probability is missing.
    """
    tokens = [int(token) for token in completion.token_ids]
    return ExternalSample(tokens, token_logprobs(tokens, completion.logprobs))


def token_logprobs(tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | None] | None) -> list[float]:
    """Return the log-probability of each token from the entries reported at its position."""
    if logprobs is None or len(logprobs) != len(tokens):
        count = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {count} log-probabilities")
    result = []
    for position, (token, entries) in enumerate(zip(tokens, logprobs, strict=True)):
        if entries is None or token not in entries:
            raise ValueError(f"token {token} at position {position} came without its log-probability")
        result.append(float(entries[token].logprob))
    return result
