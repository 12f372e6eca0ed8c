"""Log-probabilities that an external engine can report, and the sampling settings that are supported.

An external engine reports one log-probability per token, under the distribution that was sampled from. The
full softmax at the same temperature gives the same number where sampling was not truncated. Where it was
truncated, the full softmax needs a second pass over the finished response, which these engines run at
temperature 1 only.
"""

from kubealign_services.generation.contract import GenerationRequest, RequestRefused, SamplingParameters


def is_truncated(sampling: SamplingParameters) -> bool:
    """Return True where the sampled distribution differs from the full softmax."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_tokens > 0)


def check_sampling_support(request: GenerationRequest) -> None:
    """Raise RequestRefused for sampling whose full softmax the engine cannot report."""
    sampling = request.sampling
    if is_truncated(sampling) and sampling.temperature != 1:
        raise RequestRefused(
            f"request {request.request_id!r}: rollout.sampling.temperature is {sampling.temperature} "
            "together with topK, topP or minTokens; this engine reports full log-probabilities of such "
            "samples at temperature 1 only: set it to 1, or use the torch engine"
        )
