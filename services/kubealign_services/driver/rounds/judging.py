"""LLM judge: the policy scores its own responses in one more generation with the same weights."""

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
    """Prompts with given names, once, in order."""

    def __init__(self, rows: Mapping[str, PreparedRow]) -> None:
        self._rows = rows
        self._names = iter(rows)

    def next(self) -> str | None:
        return next(self._names, None)

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[group_id]


class PolicyJudge:
    """Scores responses with the rollout workers.

    Args:
        plan: Sampling of judgements; its prompts_per_step is set to the number of prompts.
        max_prompt_tokens: Most tokens of a judge prompt, so that the judgement fits; None: unlimited.
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
        """Return (sample id -> score, metrics); a score is None if no judgement contains one.

        A response is not judged if its judge prompt is too long or failed after all retries.

        Args:
            rows: Row of each group.

        Raises:
            UnrecoverableError: Too many prompts have failed, or a failure is permanent.
            ShutdownRequested: The driver was asked to stop.
        """
        responses = {
            sample_id(group.group_id, sample): (rows[group.group_id], group.rollouts[sample].response)
            for group in groups
            for sample in sorted(group.rollouts)
        }
        prompts = dict(zip(responses, self._questions.ask(list(responses.values())), strict=True))
        if self._longest is not None:
            prompts = {name: row for name, row in prompts.items() if len(row.prompt_tokens) <= self._longest}
        verdicts = await self._verdicts(prompts, version) if prompts else {}
        answers = sum(parsed.answers for parsed in verdicts.values())
        unparsed = sum(parsed.unparsed for parsed in verdicts.values())
        scores = {name: verdicts[name].score if name in verdicts else None for name in responses}
        return scores, {"round/unparsed_share": unparsed / max(1, answers)}

    async def _verdicts(self, questions: Mapping[str, PreparedRow], version: int) -> dict[str, Verdict]:
        """Sample the judgements and parse them."""
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
