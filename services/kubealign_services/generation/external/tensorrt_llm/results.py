"""Conversion of TensorRT-LLM's outputs. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.generation.external.contract import ExternalSample


def to_external_sample(completion: Any) -> ExternalSample:
    """Convert a CompletionOutput that was requested with `logprobs` 0. Raises ValueError where a
    log-probability is missing.
    """
    tokens = [int(token) for token in completion.token_ids]
    return ExternalSample(tokens, token_logprobs(tokens, completion.logprobs))


def token_logprobs(
    tokens: Sequence[int], logprobs: Sequence[Mapping[int, Any] | float] | None
) -> list[float]:
    """Return the log-probability of each token, reported as a number or among the entries of its position."""
    if logprobs is None or len(logprobs) != len(tokens):
        count = "none" if logprobs is None else len(logprobs)
        raise ValueError(f"{len(tokens)} tokens came with {count} log-probabilities")
    result = []
    for position, (token, entry) in enumerate(zip(tokens, logprobs, strict=True)):
        if isinstance(entry, Mapping):
            if token not in entry:
                raise ValueError(f"token {token} at position {position} came without its log-probability")
            result.append(float(entry[token].logprob))
        else:
            result.append(float(entry))
    return result
