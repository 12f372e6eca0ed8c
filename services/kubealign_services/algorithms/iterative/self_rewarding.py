"""Self-rewarding language models."""

from collections.abc import Sequence

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.iterative.rounds import (
    RoundPrompt,
    RoundResponse,
    RoundRow,
    RoundRows,
    mean_reward,
    rank_by_reward,
)
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.dpo import DPOAlgorithm
from kubealign_services.algorithms.offline.pairwise import PairwiseObjective


class SelfRewardingAlgorithm(OfflineAlgorithm):
    """Yuan et al. 2024, "Self-Rewarding Language Models", section 2.

    The policy judges each of its n responses to a prompt with the judge's prompt; a response's reward is
    the mean of its judgements' scores. The best and the worst response of each prompt form a pair, where
    they differ by more than minimumMargin, and the loss is DPO's with the round's initial weights p_k as
    reference:

        -log sigmoid(beta (log p(best) / p_k(best)  -  log p(worst) / p_k(worst)))

    Responses without a parsed score are ignored. Of equal scores the response sampled first is the best,
    and the one sampled last the worst.
    """

    needs_reference = True

    def __init__(self, entry: spec.SelfRewardingSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> PairwiseObjective:
        return DPOAlgorithm(spec.DPOSpec(beta=self._spec.beta)).policy_objective()

    def rows(self, prompts: Sequence[RoundPrompt]) -> RoundRows:
        ranked = [(prompt, rank_by_reward(prompt)) for prompt in prompts]
        judged = [response for _, responses in ranked for response in responses]
        response_count = sum(len(prompt.responses) for prompt in prompts)
        metrics = {"round/unjudged_share": 1 - len(judged) / max(1, response_count)}
        if not judged:
            return RoundRows(
                [],
                metrics,
                f"none of {response_count} responses got a score from the judge: check that the "
                "policy's answers to judge.prompt match judge.pattern",
            )
        metrics["round/reward_mean"] = mean_reward(judged)
        rows = [RoundRow(prompt, (best[0], best[-1])) for prompt, best in ranked if self._differ(best)]
        if not rows:
            return RoundRows(
                [],
                metrics,
                f"no prompt's best and worst scores differ by more than minimumMargin "
                f"({self._spec.minimum_margin:g})",
                is_converged=True,
            )
        metrics["round/chosen_reward"] = mean_reward([row.responses[0] for row in rows])
        metrics["round/rejected_reward"] = mean_reward([row.responses[1] for row in rows])
        return RoundRows(rows, metrics)

    def _differ(self, ranked: Sequence[RoundResponse]) -> bool:
        if len(ranked) < 2:
            return False
        best, worst = ranked[0].reward, ranked[-1].reward
        return best is not None and worst is not None and best - worst > self._spec.minimum_margin
