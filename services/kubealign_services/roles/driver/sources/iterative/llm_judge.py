"""LLM judge: the policy scores its own responses in one more generation with the same weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubealign.spec.algorithms import Judge
from kubealign_services.algorithms.iterative.judge_parsing import JudgeScore, parse_judge_scores
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.batch_assembly import make_sample_id
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.sources.iterative.judge_prompts import JudgePrompts

JUDGE_PURPOSE = "judge"


class NamedPrompts:
    """Prompts with given names, once, in order."""

    def __init__(self, rows: Mapping[str, PreparedRow]) -> None:
        self._rows = rows
        self._names = iter(rows)

    async def next_prompt(self) -> str | None:
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
        collector: RolloutCollector,
        prompts: JudgePrompts,
        plan: GroupPlan,
        spec: Judge,
        max_prompt_tokens: int | None,
    ) -> None:
        self._collector = collector
        self._prompts = prompts
        self._plan = plan
        self._spec = spec
        self._max_prompt_tokens = max_prompt_tokens

    async def __call__(
        self, groups: Sequence[RolloutGroup], rows: Mapping[str, PreparedRow], version: int
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
            make_sample_id(group.group_id, sample): (rows[group.group_id], group.rollouts[sample].response)
            for group in groups
            for sample in sorted(group.rollouts)
        }
        prompts = dict(zip(responses, self._prompts.render(list(responses.values())), strict=True))
        if self._max_prompt_tokens is not None:
            prompts = {
                name: row
                for name, row in prompts.items()
                if len(row.prompt_tokens) <= self._max_prompt_tokens
            }
        verdicts = await self._collect_verdicts(prompts, version) if prompts else {}
        answers = sum(parsed.answers for parsed in verdicts.values())
        unparsed = sum(parsed.unparsed for parsed in verdicts.values())
        scores = {name: verdicts[name].score if name in verdicts else None for name in responses}
        return scores, {"round/unparsed_share": unparsed / max(1, answers)}

    async def _collect_verdicts(
        self, questions: Mapping[str, PreparedRow], version: int
    ) -> dict[str, JudgeScore]:
        """Sample the judgements and parse them."""
        plan = replace(self._plan, prompts_per_step=len(questions))
        buffer = GroupBuffer(self._collector, NamedPrompts(questions), plan, JUDGE_PURPOSE, ())
        try:
            judged = await buffer.take_batch(version)
        finally:
            buffer.close()
        return {
            group.group_id: parse_judge_scores(
                [group.rollouts[sample].response for sample in sorted(group.rollouts)], self._spec.pattern
            )
            for group in judged
        }
