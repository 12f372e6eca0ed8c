"""Questions to the rollout workers: all of a stage at once, each with its group of answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer, GroupPlan
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.making.state import MakingState

#: Of answers on the way to a row: no reward takes them.
STAGE = "stage"
#: Of what becomes a row, with the rewards that it may have.
SAMPLES = "train"


@dataclass(frozen=True)
class Question:
    """What is asked under a name that no other question of the job has. tokens: what the policy goes on from.

    prompt, columns: what the rewards are told of it. given: responses that are not sampled, as tokens; the
    answer says how likely each is.
    """

    name: str
    tokens: list[int]
    prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[tuple[int, ...], ...] = ()


class Asking:
    """Asks, with the job's retries, deadlines and failure budget. plan: how groups are asked for."""

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
        """Name -> the group of answers, in the questions' order; those that were given up are left out and
        noted in the state. sources: the rewards that score each answer, of purpose SAMPLES. Raises
        JobFailed, Stopping."""
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
    """A Supply of each question once."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self._questions = {question.name: question for question in questions}
        self._left = list(self._questions)

    def next(self) -> str | None:
        return self._left.pop(0) if self._left else None

    def row(self, group_id: str) -> PreparedRow:
        asked = self._questions[group_id]
        return PreparedRow(
            row=0, prompt_tokens=asked.tokens, prompt_text=asked.prompt, columns=dict(asked.columns)
        )
