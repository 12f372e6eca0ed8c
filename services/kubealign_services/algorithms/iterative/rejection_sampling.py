"""Rejection sampling: imitation of the best responses."""

from collections.abc import Sequence

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.iterative.rounds import (
    RoundPrompt,
    RoundRow,
    RoundRows,
    mean_reward,
    rank_by_reward,
)
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective


class RejectionSamplingAlgorithm(OfflineAlgorithm):
    """Touvron et al. 2023, "Llama 2", section 3.2.3; Dong et al. 2023, "RAFT", algorithm 1.

    Of the n responses y_i to a prompt, sampled from the round's initial weights, those with the highest
    rewards r(y_i) >= minimumReward are imitated, keepPerPrompt of them:

        loss = mean over the kept responses' tokens of -log p(token)

    Of equal rewards the response sampled first is kept.
    """

    def __init__(self, entry: spec.RejectionSamplingSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> CrossEntropyObjective:
        return CrossEntropyObjective()

    def rows(self, prompts: Sequence[RoundPrompt]) -> RoundRows:
        all_responses = [response for prompt in prompts for response in prompt.responses]
        minimum = self._spec.minimum_reward
        rows = [
            RoundRow(prompt, (response,))
            for prompt in prompts
            for response in rank_by_reward(prompt)[: self._spec.keep_per_prompt]
            if minimum is None or (response.reward or 0.0) >= minimum
        ]
        known = [response.reward for response in all_responses if response.reward is not None]
        if not known:
            return RoundRows([], {}, f"no reward applies to any of {len(all_responses)} responses")
        metrics = {"round/reward_mean": mean_reward(all_responses)}
        if not rows:
            best = max(known)
            return RoundRows(
                [],
                metrics,
                f"the best of {len(known)} rewards is {best:.4g}, below "
                f"minimumReward ({minimum:g}): lower it, or sample more",
            )
        metrics["round/chosen_reward"] = mean_reward([row.responses[0] for row in rows])
        return RoundRows(rows, metrics)
