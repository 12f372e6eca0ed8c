"""Requests to the policy: renders prompts, submits a batch of generation requests and waits for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer, GroupPlan
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.making.state import MakingState

#: Purpose of intermediate responses, which no reward scores.
STAGE = "stage"
#: Purpose of responses that become rows, which the rewards score.
SAMPLES = "train"


@dataclass(frozen=True)
class Question:
    """One request under a name that is unique in the job. tokens: the prompt of the policy.

    prompt, columns: input of the rewards. continuations: responses that are not sampled, as tokens; the
    workers return the log-probabilities of each.
    """

    name: str
    tokens: list[int]
    prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[tuple[int, ...], ...] = ()


class Asking:
    """Client of the rollout workers, with the job's retries, deadlines and failure budget.

    Args:
        plan: Parameters of the requests.
    """

    def __init__(self, exchange: Exchange, plan: GroupPlan) -> None:
        self._exchange = exchange
        self._plan = plan

    async def __call__(
        self,
        questions: Sequence[Question],
        samples: int,
        state: MakingState,
        purpose: str = STAGE,
        sources: Sequence[str] = (),
    ) -> dict[str, Group]:
        """Return request name -> group of responses, in the order of the requests.

        Requests that fail after all retries are left out and recorded in the state.

        Args:
            sources: Rewards that score each response of purpose SAMPLES_PURPOSE.

        Raises:
            UnrecoverableError: Too many requests have failed, or a failure is permanent.
            ShutdownRequested: The driver was asked to stop.
        """
        if not questions:
            return {}
        buffer = GroupBuffer(
            self._exchange,
            _Questions(questions),
            replace(self._plan, prompts_per_step=len(questions), samples_per_prompt=samples),
            purpose,
            tuple(sources),
            failures=len(state.given_up),
            given={question.name: question.given for question in questions if question.given},
        )
        try:
            groups = await buffer.take(version=0)
        finally:
            buffer.close()
        state.given_up += buffer.given_up
        return {group.group_id: group for group in groups}


class _Questions:
    """Prompt source of each request once."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = {question.name: question for question in questions}
        self._left = list(self._questions)

    def next(self) -> str | None:
        return self._left.pop(0) if self._left else None

    def row(self, group_id: str) -> PreparedRow:
        request = self._questions[group_id]
        return PreparedRow(
            row=0, prompt_tokens=request.tokens, prompt_text=request.prompt, columns=dict(request.columns)
        )
