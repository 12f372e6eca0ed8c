"""Conversion of an external engine's response into a GeneratedSample, and the sampling settings that allow
it. Pure.

An external engine reports one log-probability per token, under the distribution that was sampled from. The
full softmax at the same temperature gives the same number where sampling was not truncated. Where it was
truncated, the full softmax needs a second pass over the finished response, which these engines run at
temperature 1 only.
"""

from collections.abc import Callable, Sequence

from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.generation.torch_engine.sampling.stop_strings import StopStrings


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


def to_generated_sample(
    request: GenerationRequest,
    index: int,
    external: ExternalSample,
    engine_logprobs: Sequence[float],
    end_tokens: frozenset[int],
    version: int,
    seconds: float,
    decode: Callable[[Sequence[int]], str],
) -> GeneratedSample:
    """Convert a response.

    The behaviour log-probability of a greedy token is 0, because its distribution is a point.

    Raises ValueError where the engine returned no tokens, or not one log-probability for each token.

    Args:
        end_tokens: Ids that end a response.
        decode: Maps tokens to text, special tokens included.
    """
    tokens = external.tokens
    if not tokens or len(external.logprobs) != len(tokens) or len(engine_logprobs) != len(tokens):
        raise ValueError(
            f"request {request.request_id!r}: the engine gave {len(tokens)} tokens, {len(external.logprobs)} "
            f"log-probabilities and {len(engine_logprobs)} of the full softmax"
        )
    finish, text = _finish_and_text(tokens, end_tokens, request, decode)
    greedy = request.sampling.temperature == 0
    return GeneratedSample(
        request_id=request.request_id,
        sample=index,
        tokens=tokens,
        behaviour_logprobs=[0.0] * len(tokens) if greedy else external.logprobs,
        engine_logprobs=list(engine_logprobs),
        versions=[version] * len(tokens),
        finish=finish,
        text=text,
        seconds=seconds,
    )


def _finish_and_text(
    tokens: list[int],
    ends: frozenset[int],
    request: GenerationRequest,
    decode: Callable[[Sequence[int]], str],
) -> tuple[FinishReason, str]:
    """Derive the finish reason and the text without its end from the tokens alone, like the torch engine."""
    if tokens[-1] in ends:
        return FinishReason.STOP, decode(tokens[:-1])
    if request.sampling.stop:
        stopped = StopStrings(decode, request.sampling.stop).scan(tokens, request.sampling.min_tokens)
        if stopped is not None:
            _, text = stopped
            return FinishReason.STOP, text
    return FinishReason.LENGTH, decode(tokens)
