"""Requests to the policy: renders prompts, submits a batch of requests and waits for all of them."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.placeholders import fill_placeholders
from kubealign.spec.sections.data import PromptMessages
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.rows.example import Example
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup

#: Purpose of intermediate responses, which no reward scores.
STAGE_PURPOSE = "stage"
#: Purpose of responses that become rows, which the rewards score.
SAMPLES_PURPOSE = "train"


@dataclass(frozen=True)
class PolicyRequest:
    """One request under a name that is unique in the job. tokens: the prompt of the policy.

    prompt, columns: input of the rewards. continuations: responses that are not sampled, as tokens; the
    workers return the log-probabilities of each.
    """

    name: str
    tokens: list[int]
    prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    continuations: tuple[tuple[int, ...], ...] = ()


class RequestClient:
    """Client of the rollout workers, with the job's retries, deadlines and failure budget.

    Args:
        plan: Parameters of the requests.
        group_sources: Rewards that score all responses to a request at once.
    """

    def __init__(
        self, collector: RolloutCollector, plan: GroupPlan, group_sources: Container[str] = ()
    ) -> None:
        self._collector = collector
        self._plan = plan
        self._group_sources = group_sources

    async def __call__(
        self,
        requests: Sequence[PolicyRequest],
        samples: int,
        state: DataGenerationState,
        purpose: str = STAGE_PURPOSE,
        sources: Sequence[str] = (),
    ) -> dict[str, RolloutGroup]:
        """Return request name -> group of responses, in the order of the requests.

        Requests that fail after all retries are left out and recorded in the state.

        Args:
            sources: Rewards that score each response of purpose SAMPLES_PURPOSE.

        Raises:
            UnrecoverableError: Too many requests have failed, or a failure is permanent.
            ShutdownRequested: The driver was asked to stop.
        """
        if not requests:
            return {}
        buffer = GroupBuffer(
            self._collector,
            _RequestPrompts(requests),
            replace(self._plan, prompts_per_step=len(requests), samples_per_prompt=samples),
            purpose,
            tuple(sources),
            GroupBufferOptions(
                failure_count=len(state.given_up),
                continuations={
                    request.name: request.continuations for request in requests if request.continuations
                },
                group_sources=self._group_sources,
            ),
        )
        try:
            groups = await buffer.take_batch(version=0)
        finally:
            buffer.close()
        state.given_up += buffer.failed_prompts
        return {group.group_id: group for group in groups}


class _RequestPrompts:
    """Prompt source of each request once."""

    def __init__(self, requests: Sequence[PolicyRequest]) -> None:
        self._requests = {request.name: request for request in requests}
        self._pending = list(self._requests)

    async def next_prompt(self) -> str | None:
        return self._pending.pop(0) if self._pending else None

    def row(self, group_id: str) -> PreparedRow:
        request = self._requests[group_id]
        return PreparedRow(
            row=0, prompt_tokens=request.tokens, prompt_text=request.prompt, columns=dict(request.columns)
        )


class PromptRenderer:
    """Renderer of filled-in templates: as text if the data's prompts are text, else as a single user message.

    Args:
        chat: Format of the data's prompts; None: prompts are text.
        context: Most tokens of prompt and response together; None: unlimited.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat: PromptMessages | None, context: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = ExampleTokenizer(tokenizer, {} if chat is None else chat.chat_template_kwargs)
        self._is_chat = chat is not None
        self._context = context

    def render(
        self, template: str, values: Sequence[Mapping[str, str]], response: int
    ) -> list[list[int] | None]:
        """Return the template's tokens with each of the values; None if a response of `response` tokens would
        not fit.
        """
        texts = [fill_placeholders(template, item.__getitem__) for item in values]
        examples = [
            Example(number, [{"role": "user", "content": text}] if self._is_chat else text)
            for number, text in enumerate(texts)
        ]
        rendered = [item.prompt_tokens for item in self._renderer.tokenize(examples)]
        if self._context is None:
            return list(rendered)
        return [tokens if len(tokens) + response <= self._context else None for tokens in rendered]

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a given answer. Raises UnrecoverableError if it has none."""
        tokens = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if not tokens:
            raise UnrecoverableError(f"the answer {text!r} has no tokens: choose another")
        return tokens
