"""Which log-probabilities an engine of others can give, and where ours come from.

Such an engine tells of each token one log-probability, that of the distribution it was sampled from. The full
softmax at the same temperature is the same number where nothing was cut off. Where something was, it is asked
for in a second pass over the finished response, which such engines make at temperature 1 only.
"""

from kubealign_services.generation.contract import GenerationRequest, RequestRefused, SamplingParameters


def is_cut(sampling: SamplingParameters) -> bool:
    """Whether the distribution sampled from is not the full softmax."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_tokens > 0)


def check_distribution(request: GenerationRequest) -> None:
    """Raises RequestRefused for sampling whose full softmax the engine cannot tell."""
    sampling = request.sampling
    if is_cut(sampling) and sampling.temperature != 1:
        raise RequestRefused(
            f"request {request.request_id!r}: rollout.sampling.temperature is {sampling.temperature} beside "
            "topK, topP or minTokens; this engine tells full log-probabilities of such samples at "
            "temperature 1 only: set it to 1, or use the torch engine"
        )
