"""A response of an engine of others as a sample of ours. Pure."""

from collections.abc import Callable, Sequence

from kubealign_services.generation.contract import Finish, GeneratedSample, GenerationRequest
from kubealign_services.generation.outside.contract import Drawn
from kubealign_services.generation.torch_engine.stops import StopStrings


def sample_of(
    request: GenerationRequest,
    index: int,
    drawn: Drawn,
    engine_logprobs: Sequence[float],
    ends: frozenset[int],
    version: int,
    seconds: float,
    decode: Callable[[Sequence[int]], str],
) -> GeneratedSample:
    """ends: the ids that end a response. decode: tokens -> text, special ones included. The behaviour
    log-probability of a greedy token is 0: it could be no other.

    Raises ValueError where the engine gave no tokens, or not one log-probability for each.
    """
    tokens = drawn.tokens
    if not tokens or len(drawn.logprobs) != len(tokens) or len(engine_logprobs) != len(tokens):
        raise ValueError(
            f"request {request.request_id!r}: the engine gave {len(tokens)} tokens, {len(drawn.logprobs)} "
            f"log-probabilities and {len(engine_logprobs)} of the full softmax"
        )
    finish, text = _ending(tokens, ends, request, decode)
    greedy = request.sampling.temperature == 0
    return GeneratedSample(
        request_id=request.request_id,
        sample=index,
        tokens=tokens,
        behaviour_logprobs=[0.0] * len(tokens) if greedy else drawn.logprobs,
        engine_logprobs=list(engine_logprobs),
        versions=[version] * len(tokens),
        finish=finish,
        text=text,
        seconds=seconds,
    )


def _ending(
    tokens: list[int],
    ends: frozenset[int],
    request: GenerationRequest,
    decode: Callable[[Sequence[int]], str],
) -> tuple[Finish, str]:
    """Why it ended, and its text without what ended it; from the tokens alone, as our own engine has it."""
    if tokens[-1] in ends:
        return Finish.STOP, decode(tokens[:-1])
    if request.sampling.stop:
        stopped = StopStrings(decode, request.sampling.stop).follow(tokens, request.sampling.min_tokens)
        if stopped is not None:
            _, text = stopped
            return Finish.STOP, text
    return Finish.LENGTH, decode(tokens)
