"""Requests to the policy: renders prompts, submits a batch of generation requests and waits for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.data_generation.state import DataGenerationState

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
    """

    def __init__(self, collector: RolloutCollector, plan: GroupPlan) -> None:
        self._collector = collector
        self._plan = plan

    async def __call__(
        self,
        questions: Sequence[PolicyRequest],
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
        if not questions:
            return {}
        buffer = GroupBuffer(
            self._collector,
            _RequestPrompts(questions),
            replace(self._plan, prompts_per_step=len(questions), samples_per_prompt=samples),
            purpose,
            tuple(sources),
            failure_count=len(state.given_up),
            continuations={question.name: question.continuations for question in questions if question.continuations},
        )
        try:
            groups = await buffer.take_batch(version=0)
        finally:
            buffer.close()
        state.given_up += buffer.failed_prompts
        return {group.group_id: group for group in groups}


class _RequestPrompts:
    """Prompt source of each request once."""

    def __init__(self, questions: Sequence[PolicyRequest]) -> None:
        self._requests = {question.name: question for question in questions}
        self._pending = list(self._requests)

    def next_prompt(self) -> str | None:
        return self._pending.pop(0) if self._pending else None

    def row(self, group_id: str) -> PreparedRow:
        request = self._requests[group_id]
        return PreparedRow(
            row=0, prompt_tokens=request.tokens, prompt_text=request.prompt, columns=dict(request.columns)
        )
