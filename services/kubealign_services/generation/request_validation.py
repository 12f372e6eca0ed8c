"""Validation of requests: rejects those that no engine can serve."""

import math
from collections.abc import Container

from kubealign_services.generation.contract import GenerationRequest, RequestRefused, SamplingParameters


def check_request(
    request: GenerationRequest, context: int, vocabulary: int, active_ids: Container[str]
) -> None:
    """Raise RequestRefused, naming the request, the field, its value and the allowed values.

    Args:
        context: Largest number of tokens of a sequence.
        vocabulary: Number of token ids.
        active_ids: Ids of the requests that the engine has.
    """

    def refuse(why: str) -> RequestRefused:
        return RequestRefused(f"request {request.request_id!r}: {why}")

    if request.request_id in active_ids:
        raise refuse("one with this id is already here")
    if request.from_reference:
        raise refuse("from_reference is set, and this engine has the weights of the policy only")
    if not request.seeds:
        raise refuse("seeds is empty: it needs one for each sample")
    prompt = request.prompt_tokens
    if not prompt:
        raise refuse("prompt_tokens is empty")
    foreign = next((token for token in prompt if not 0 <= token < vocabulary), None)
    if foreign is not None:
        raise refuse(f"prompt_tokens holds {foreign}; the vocabulary has 0 to {vocabulary - 1}")
    complaint = _sampling_error(request.sampling, vocabulary)
    if complaint:
        raise refuse(complaint)
    if len(prompt) + request.sampling.max_tokens > context:
        raise refuse(
            f"a prompt of {len(prompt)} tokens and max_tokens {request.sampling.max_tokens} make "
            f"{len(prompt) + request.sampling.max_tokens}, more than the model's context of {context}"
        )


def _sampling_error(sampling: SamplingParameters, vocabulary: int) -> str | None:
    """Return the error in the sampling parameters, or None."""
    if sampling.max_tokens < 1:
        return f"max_tokens is {sampling.max_tokens}; it must be at least 1"
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        return f"min_tokens is {sampling.min_tokens}; it must be 0 to max_tokens ({sampling.max_tokens})"
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}; it must be 0 or more"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}; it must be 0 (off) or more"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}; it must be above 0 and at most 1"
    if "" in sampling.stop:
        return "stop holds an empty string"
    foreign = next((token for token in sampling.stop_token_ids if not 0 <= token < vocabulary), None)
    if foreign is not None:
        return f"stop_token_ids holds {foreign}; the vocabulary has 0 to {vocabulary - 1}"
    return None
