"""Episode: one response of several turns, alternating between policy and environment, in one sequence or
several.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from transformers import PreTrainedTokenizerBase

from kubealign.spec.sections.rewards import DEFAULT_REWARD
from kubealign_services.data.rows.example import Message
from kubealign_services.generation.contract import (
    FinishReason,
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.scoring.functions.results import InvalidResult, check_results
from kubealign_services.training.expert_routing import Routing

#: Generates one sample of a request of one seed.
GenerateSample = Callable[[GenerationRequest], Awaitable[GeneratedSample]]


@dataclass(frozen=True)
class Turn:
    """Result of one generation.

    text: with the stop string that ended it. stop: that string; None if the response ended by itself or at
    its length. truncated: the response has no room left. finish: its end as the engine reports it.
    """

    text: str
    stop: str | None
    truncated: bool
    finish: FinishReason = FinishReason.STOP


@dataclass
class EpisodeReward:
    """Reward of one name that a workflow has given so far.

    turns: (number of response tokens before the reward, value), in order. metrics and explanation: what the
    workflow reports with it.
    """

    turns: list[tuple[int, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    explanation: str = ""

    @property
    def total(self) -> float:
        """Sum over the turns."""
        return sum(value for _, value in self.turns)


@dataclass
class Transcript:
    """The response so far, token by token.

    loss_mask: 1 at the policy's tokens, 0 at the environment's, whose log-probabilities are 0 and whose
    version is -1. routing [n, layers, k]: where the engine records them, the experts of the first n tokens of
    the prompt and the response, each from the first generation after it. rewards: those that the workflow has
    given, by name.
    """

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    behaviour_logprobs: list[float] = field(default_factory=list)
    engine_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routing: Routing | None = None
    text: str = ""
    seconds: float = 0.0
    turns: int = 0
    tool_errors: int = 0
    truncated: bool = False
    rewards: dict[str, EpisodeReward] = field(default_factory=dict)


class Episode:
    """Interface of a workflow: the prompt, and methods to generate, to insert text and to give rewards.

    `columns` are the row's. `reward_names` are the names that the job's rewards take from episodes.

    The response has at most max_tokens tokens, including the environment's. `branch` begins another sequence
    of the episode, with a prompt of its own; it is an episode with the same interface.
    """

    def __init__(
        self,
        prompt: str,
        columns: dict[str, Any],
        request: GenerationRequest,
        tokenizer: PreTrainedTokenizerBase,
        generate: GenerateSample,
        deadline: float | None = None,
        reward_names: Collection[str] = (),
        branching: Branching | None = None,
    ) -> None:
        """Set up an episode.

        Args:
            request: Request of this one sample; the seeds of its turns derive from its seed.
            deadline: time.monotonic() at which a custom workflow is cancelled; None: never.
            branching: Limits of its sequences; None: it has one.
        """
        self.deadline = deadline
        #: Seed of 63 bits that all samples of the group share.
        self.group_seed = 0
        self.prompt, self.columns = prompt, columns
        self.reward_names = frozenset(reward_names)
        self.transcript = Transcript()
        self._request, self._tokenizer, self._generate = request, tokenizer, generate
        self._branching = branching
        # All sequences of the episode, in the order in which they begin; one list for all of them.
        self._begun: list[Episode] = [self]

    def call_engine_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `generate` call the engine on this event loop, for a workflow that runs on another one."""
        generate = self._generate

        async def on_loop(request: GenerationRequest) -> GeneratedSample:
            async def call() -> GeneratedSample:
                return await generate(request)

            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), loop))

        self._generate = on_loop

    @property
    def response(self) -> str:
        """Text generated and inserted so far."""
        return self.transcript.text

    @property
    def room(self) -> int:
        """Number of tokens that the response may still get."""
        return self._request.sampling.max_tokens - len(self.transcript.tokens)

    @property
    def sampling(self) -> SamplingParameters:
        """Sampling parameters of the job, with the most tokens of the response."""
        return self._request.sampling

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None: it has none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """Ids of the prompt."""
        return self._request.prompt_tokens

    @property
    def sequences(self) -> list["Episode"]:
        """Sequences of the whole episode in which the policy has generated, in the order in which they
        began: this one, if it is the first, then the branches.
        """
        return [sequence for sequence in self._begun if sequence.transcript.turns > 0]

    def branch(
        self,
        *,
        messages: Sequence[Message] | None = None,
        text: str | None = None,
        tokens: Sequence[int] | None = None,
    ) -> "Episode":
        """Begin another sequence of the same episode, with a prompt of its own, and return it.

        The policy generates in it as in this one: turns, inserted text and rewards belong to the sequence on
        which they are called, and each sequence keeps its own tokens, log-probabilities and weight versions.
        All sequences in which the policy generated are trained on with the reward of the whole episode; those
        in which it did not are left out. The order is that of the calls. Rewards other than the episode's
        score the last sequence. Several sequences may generate at the same time.

        The response of a sequence has at most max_tokens tokens, and prompt and response together have at
        most those of the longest prompt of the job's data and max_tokens.

        Args:
            messages: Chat messages, rendered with the policy's chat template and the opening of an answer.
            text: Text of the prompt.
            tokens: Ids of the prompt.

        Raises:
            ValueError: The episode has as many sequences as rollout.maxSequencesPerSample allows, not exactly
                one kind of prompt is given, or the prompt is empty, unknown to the policy or leaves no room.
        """
        branching = self._branching or Branching(self._tokenizer)
        branching.check_count(len(self._begun))
        prompt = branching.encode_prompt(messages, text, tokens)
        first, number = self._begun[0]._request, len(self._begun)
        longest = max(branching.longest_prompt or 0, len(first.prompt_tokens)) + first.sampling.max_tokens
        max_tokens = min(first.sampling.max_tokens, longest - len(prompt))
        if max_tokens <= 0:
            raise ValueError(
                f"episode.branch: a prompt of {len(prompt)} tokens leaves no room: prompt and response have "
                f"at most {longest} tokens, those of the longest prompt of the data and "
                "rollout.sampling.maxTokens"
            )
        sampling = replace(
            first.sampling, max_tokens=max_tokens, min_tokens=min(first.sampling.min_tokens, max_tokens)
        )
        request = replace(
            first,
            request_id=f"{first.request_id}:branch{number}",
            prompt_tokens=tuple(prompt),
            seeds=(xxhash.xxh3_64_intdigest(f"{first.seeds[0]}:branch{number}".encode()),),
            sampling=sampling,
        )
        branch = Episode(
            text if text is not None else str(self._tokenizer.decode(prompt, skip_special_tokens=True)),
            self.columns,
            request,
            self._tokenizer,
            self._generate,
            self.deadline,
            self.reward_names,
            self._branching,
        )
        branch.group_seed, branch._begun = self.group_seed, self._begun
        self._begun.append(branch)
        return branch

    async def generate(self, stop: Sequence[str] = (), max_tokens: int | None = None) -> Turn:
        """Continue the response until it ends by itself, at one of `stop`, at one of the job's stop strings,
        or at its length.

        Raises:
            RequestRefused: The engine cannot run the request.
            ValueError: The response has no room left.
        """
        if self.room <= 0:
            raise ValueError("the response has no room left: check episode.room before the next turn")
        job_sampling = self._request.sampling
        max_new_tokens = min(self.room, max_tokens or self.room)
        response = self.transcript
        sampling = SamplingParameters(
            max_tokens=max_new_tokens,
            min_tokens=max(0, min(job_sampling.min_tokens - len(response.tokens), max_new_tokens)),
            temperature=job_sampling.temperature,
            top_k=job_sampling.top_k,
            top_p=job_sampling.top_p,
            stop=(*stop, *job_sampling.stop),
            stop_token_ids=job_sampling.stop_token_ids,
        )
        seed = xxhash.xxh3_64_intdigest(f"{self._request.seeds[0]}:{response.turns}".encode())
        sample = await self._generate(
            GenerationRequest(
                f"{self._request.request_id}:{response.turns}",
                (*self._request.prompt_tokens, *response.tokens),
                (seed,),
                sampling,
                self._request.from_reference,
            )
        )
        stop_string = self._find_stop(sample, stop) if sample.finish is FinishReason.STOP else None
        text = sample.text + (stop_string or "")
        response.tokens += sample.tokens
        response.loss_mask += [1] * len(sample.tokens)
        response.behaviour_logprobs += sample.behaviour_logprobs
        response.engine_logprobs += sample.engine_logprobs
        response.versions += sample.versions
        response.routing = _continue_routing(response.routing, sample.routing)
        response.text += text
        response.seconds += sample.seconds
        response.turns += 1
        response.truncated = sample.finish is FinishReason.LENGTH and self.room <= 0
        return Turn(text, stop_string, response.truncated, sample.finish)

    def put(self, text: str) -> bool:
        """Append the environment's text, which is not trained on.

        Returns False, and truncates the response here, if the text leaves no room for the policy to
        continue.
        """
        return self._append(self._tokenizer(text, add_special_tokens=False)["input_ids"], text)

    def append(self, tokens: Sequence[int]) -> bool:
        """Append the environment's tokens, as `put` does text; the response's text has no special tokens."""
        return self._append(tokens, str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)))

    def _append(self, tokens: Sequence[int], text: str) -> bool:
        response = self.transcript
        if len(tokens) >= self.room:
            response.truncated = True
            return False
        response.tokens += tokens
        response.loss_mask += [0] * len(tokens)
        response.behaviour_logprobs += [0.0] * len(tokens)
        response.engine_logprobs += [0.0] * len(tokens)
        response.versions += [-1] * len(tokens)
        response.text += text
        return True

    def reward(
        self,
        value: float,
        name: str = DEFAULT_REWARD,
        *,
        metrics: Mapping[str, float] | None = None,
        explanation: str = "",
    ) -> None:
        """Add to the reward of the response, at the last token that the policy has generated.

        The reward of a name is the sum of all values that are given under it. A reward of the job with
        `episode: {name: NAME}` takes it; with none given it does not apply to the response.

        Args:
            metrics: Numbers by name that are reported as reward/NAME/METRIC; later values replace earlier
                ones.
            explanation: Text that is shown with the sample; a later one replaces an earlier one.

        Raises:
            ValueError: Nothing is generated yet, the value is not a finite number, or no reward of the job
                takes this name.
        """
        if name not in self.reward_names:
            takers = ", ".join(sorted(self.reward_names)) or "none: add one to spec.rewards"
            raise ValueError(f"no reward of the job takes {name!r} from episodes; the names are {takers}")
        if self.transcript.turns == 0:
            raise ValueError("nothing is generated yet: a reward belongs to the policy's last token")
        try:
            (result,) = check_results(
                [{"reward": value, "metrics": metrics, "explanation": explanation}], count=1
            )
        except InvalidResult as error:
            raise ValueError(f"episode.reward: the workflow {error}") from error
        if result.reward is None:
            raise ValueError("episode.reward: a reward is a number, not None")
        entry = self.transcript.rewards.setdefault(name, EpisodeReward())
        mask = self.transcript.loss_mask
        entry.turns.append((len(mask) - mask[::-1].index(1), result.reward))
        entry.metrics |= result.metrics
        entry.explanation = result.explanation or entry.explanation

    def _find_stop(self, sample: GeneratedSample, stops: Sequence[str]) -> str | None:
        """Return the one of `stops` that follows the sample's text; None: it ended otherwise."""
        full_text = str(self._tokenizer.decode(sample.tokens, skip_special_tokens=True))
        rest = full_text[len(sample.text) :]
        return next((stop for stop in stops if rest.startswith(stop)), None)


def _continue_routing(earlier: Routing | None, newest: Routing | None) -> Routing | None:
    """Return the recorded experts of a transcript after another turn, whose own record begins with tokens of
    earlier turns.
    """
    if earlier is None or newest is None:
        return newest
    routing: Routing = np.concatenate((earlier, newest[len(earlier) :]))
    return routing
