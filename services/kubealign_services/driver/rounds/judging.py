"""The policy's judgements of its own responses: one more generation with the same weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubealign.spec.algorithms import Judge
from kubealign_services.algorithms.judgement import Verdict, verdict
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.assembly import sample_id
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer, GroupPlan
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.rounds.questions import Questions

PURPOSE = "judge"


class NamedSupply:
    """Prompts that have names, once, in order."""

    def __init__(self, rows: Mapping[str, PreparedRow]) -> None:
        self._rows = rows
        self._names = iter(rows)

    def next(self) -> str | None:
        return next(self._names, None)

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[group_id]


class PolicyJudge:
    """Asks the rollout workers about responses.

    longest: tokens that a question may have, so that the judgement fits behind it; None: unbounded. plan: how
    judgements are sampled; its prompts_per_step is set to the questions there are.
    """

    def __init__(
        self,
        exchange: Exchange,
        questions: Questions,
        plan: GroupPlan,
        spec: Judge,
        longest: int | None,
    ) -> None:
        self._exchange = exchange
        self._questions = questions
        self._plan = plan
        self._spec = spec
        self._longest = longest

    async def __call__(
        self, groups: Sequence[Group], rows: Mapping[str, PreparedRow], version: int
    ) -> tuple[dict[str, float | None], dict[str, float]]:
        """(sample id -> its score, None where no judgement holds one; figures). rows: of each group. A
        response whose question is too long, or given up after its retries, is not judged. Raises JobFailed,
        Stopping."""
        asked = {
            sample_id(group.group_id, sample): (rows[group.group_id], group.rollouts[sample].response)
            for group in groups
            for sample in sorted(group.rollouts)
        }
        written = dict(zip(asked, self._questions.ask(list(asked.values())), strict=True))
        if self._longest is not None:
            written = {name: row for name, row in written.items() if len(row.prompt_tokens) <= self._longest}
        verdicts = await self._verdicts(written, version) if written else {}
        answers = sum(found.answers for found in verdicts.values())
        unparsed = sum(found.unparsed for found in verdicts.values())
        scores = {name: verdicts[name].score if name in verdicts else None for name in asked}
        return scores, {"round/unparsed_share": unparsed / max(1, answers)}

    async def _verdicts(self, questions: Mapping[str, PreparedRow], version: int) -> dict[str, Verdict]:
        plan = replace(self._plan, prompts_per_step=len(questions))
        buffer = GroupBuffer(self._exchange, NamedSupply(questions), plan, PURPOSE, ())
        try:
            judged = await buffer.take(version)
        finally:
            buffer.close()
        return {
            group.group_id: verdict(
                [group.rollouts[sample].response for sample in sorted(group.rollouts)], self._spec.pattern
            )
            for group in judged
        }
