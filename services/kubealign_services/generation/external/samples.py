"""Conversion of an external engine's response into a GeneratedSample, and the sampling settings that allow
it. Pure.

An external engine reports one log-probability per token, under the distribution that was sampled from. The
full softmax at the same temperature gives the same number where sampling was not truncated. Where it was
truncated, the full softmax needs a second pass over the finished response, which some engines run at
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
from kubealign_services.generation.stop_strings import StopStrings


def is_truncated(sampling: SamplingParameters) -> bool:
    """Return True where the sampled distribution differs from the full softmax.

    minTokens forbids the end tokens at first, at temperature 0 too.
    """
    return sampling.min_tokens > 0 or (
        sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
    )


def check_sampling_support(request: GenerationRequest) -> None:
    """Raise RequestRefused for sampling whose full softmax an engine that scores at temperature 1 only cannot
    report.
    """
    sampling = request.sampling
    if is_truncated(sampling) and sampling.temperature not in (0, 1):
        raise RequestRefused(
            f"request {request.request_id!r}: rollout.sampling.temperature is {sampling.temperature} "
            "together with topK, topP or minTokens; this engine reports full log-probabilities of such "
            "samples at temperature 0 or 1 only: set it to one of them, or use the torch engine"
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
    finish, count, text = _find_end(tokens, end_tokens, request, decode)
    greedy = request.sampling.temperature == 0
    return GeneratedSample(
        request_id=request.request_id,
        sample=index,
        tokens=tokens[:count],
        behaviour_logprobs=[0.0] * count if greedy else external.logprobs[:count],
        engine_logprobs=list(engine_logprobs[:count]),
        versions=[version] * count,
        finish=finish,
        text=text,
        seconds=seconds,
    )


def _find_end(
    tokens: list[int],
    ends: frozenset[int],
    request: GenerationRequest,
    decode: Callable[[Sequence[int]], str],
) -> tuple[FinishReason, int, str]:
    """Derive the finish reason, the number of tokens and the text without its end from the tokens alone, like
    the torch engine.

    An engine that heeds stop strings only after the `minTokens`-th token, as vLLM does, has gone on behind a
    string that this token completes; the tokens behind it are cut off.
    """
    text_end = len(tokens) - (tokens[-1] in ends)
    if request.sampling.stop:
        stopped = StopStrings(decode, request.sampling.stop).scan(
            tokens[:text_end], request.sampling.min_tokens
        )
        if stopped is not None:
            count, text = stopped
            return FinishReason.STOP, count, text
    finish = FinishReason.LENGTH if text_end == len(tokens) else FinishReason.STOP
    return finish, len(tokens), decode(tokens[:text_end])
