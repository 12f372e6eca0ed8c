"""One response of several turns: what the policy generates and what the environment says, in turn."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash
from transformers import PreTrainedTokenizerBase

from kubealign_services.generation.contract import (
    Finish,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)

#: Generates one sample of a request of one seed.
Generate = Callable[[GenerationRequest], Awaitable[GeneratedSample]]


@dataclass(frozen=True)
class Turn:
    """What the policy generated at once. text: with the stop string that ended it. stop: that string; None
    where the response ended by itself or by its length. truncated: there is no room for more."""

    text: str
    stop: str | None
    truncated: bool


@dataclass
class Transcript:
    """The response so far, token by token. learned: 1 at the policy's tokens, 0 at the environment's, whose
    log-probabilities are 0 and whose version is -1."""

    tokens: list[int] = field(default_factory=list)
    learned: list[int] = field(default_factory=list)
    behaviour_logprobs: list[float] = field(default_factory=list)
    engine_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    text: str = ""
    seconds: float = 0.0
    turns: int = 0
    tool_errors: int = 0
    truncated: bool = False


class Episode:
    """What a workflow is given: the prompt, and the two things that it can do. `columns` are the row's.

    The response has at most max_tokens tokens, the environment's included."""

    def __init__(
        self,
        prompt: str,
        columns: dict[str, Any],
        request: GenerationRequest,
        tokenizer: PreTrainedTokenizerBase,
        generate: Generate,
    ) -> None:
        """request: of this one sample; its turns are seeded from its seed."""
        self.prompt, self.columns = prompt, columns
        self.transcript = Transcript()
        self._request, self._tokenizer, self._generate = request, tokenizer, generate

    @property
    def response(self) -> str:
        """All that was generated and put in so far."""
        return self.transcript.text

    @property
    def room(self) -> int:
        """Tokens that the response may still get."""
        return self._request.sampling.max_tokens - len(self.transcript.tokens)

    async def generate(self, stop: Sequence[str] = (), max_tokens: int | None = None) -> Turn:
        """Have the policy go on, until it ends by itself, at one of `stop` or of the job's own stop strings,
        or at its length. Raises RequestRefused; ValueError where there is no room."""
        if self.room <= 0:
            raise ValueError("the response has no room left: look at episode.room before it goes on")
        own = self._request.sampling
        most = min(self.room, max_tokens or self.room)
        said = self.transcript
        sampling = SamplingParameters(
            max_tokens=most,
            min_tokens=max(0, min(own.min_tokens - len(said.tokens), most)),
            temperature=own.temperature,
            top_k=own.top_k,
            top_p=own.top_p,
            stop=(*stop, *own.stop),
            stop_token_ids=own.stop_token_ids,
        )
        seed = xxhash.xxh3_64_intdigest(f"{self._request.seeds[0]}:{said.turns}".encode())
        sample = await self._generate(
            GenerationRequest(
                f"{self._request.request_id}:{said.turns}",
                (*self._request.prompt_tokens, *said.tokens),
                (seed,),
                sampling,
            )
        )
        ended = self._stop_of(sample, stop) if sample.finish is Finish.STOP else None
        text = sample.text + (ended or "")
        said.tokens += sample.tokens
        said.learned += [1] * len(sample.tokens)
        said.behaviour_logprobs += sample.behaviour_logprobs
        said.engine_logprobs += sample.engine_logprobs
        said.versions += sample.versions
        said.text += text
        said.seconds += sample.seconds
        said.turns += 1
        said.truncated = sample.finish is Finish.LENGTH and self.room <= 0
        return Turn(text, ended, said.truncated)

    def put(self, text: str) -> bool:
        """Put the environment's text behind what was generated. Nothing of it is learned. False, and nothing
        is put, where it leaves no room for the policy to go on: the response is then cut there."""
        tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        said = self.transcript
        if len(tokens) >= self.room:
            said.truncated = True
            return False
        said.tokens += tokens
        said.learned += [0] * len(tokens)
        said.behaviour_logprobs += [0.0] * len(tokens)
        said.engine_logprobs += [0.0] * len(tokens)
        said.versions += [-1] * len(tokens)
        said.text += text
        return True

    def _stop_of(self, sample: GeneratedSample, stops: Sequence[str]) -> str | None:
        """Which of `stops` stands behind the sample's text; None: it ended otherwise."""
        whole = str(self._tokenizer.decode(sample.tokens, skip_special_tokens=True))
        behind = whole[len(sample.text) :]
        return next((stop for stop in stops if behind.startswith(stop)), None)
