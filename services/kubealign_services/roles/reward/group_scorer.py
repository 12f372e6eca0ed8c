"""Scorer that calls a Python function once for all samples of a prompt."""

from collections.abc import Callable, Sequence
from typing import Any

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.roles.reward.function_scorer import FunctionScorer, RewardCalls
from kubealign_services.scoring.functions.batching import BatchedFunction, Outcome
from kubealign_services.scoring.functions.errors import RewardError
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.purposes import TRAINING, requested_purpose

#: Arguments that a function may take besides the columns of the row, with one value per sample: the sample's
#: index in its group, and its kind: policy, or one of `auxiliary_kinds`. They replace columns of these names.
SAMPLE_INDEX, SAMPLE_KIND = "sample_index", "sample_kind"
#: Kind of the samples that are not auxiliary ones.
_POLICY = "policy"


class GroupScorer(FunctionScorer):
    """Calls the function on one prompt's samples at a time. An error is that of all of them.

    Receives complete groups, whose samples follow one another in the order of their indices.

    Args:
        auxiliary: Kinds of the last samples of a training prompt, as in `auxiliary_kinds`.
    """

    def __init__(
        self,
        name: str,
        worker: str,
        function: RewardCalls,
        policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
        on_failure: Callable[[str], None] = lambda kind: None,
        auxiliary: Sequence[str] = (),
    ) -> None:
        super().__init__(name, worker, function, policy, on_failure)
        self._auxiliary = tuple(auxiliary)
        self._training = requested_purpose(TRAINING, name)
        self._batched_groups = BatchedFunction(self._group_results, 1, policy is RewardErrorPolicy.RETRY)

    async def _outcomes(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[Outcome]:
        groups = split_groups(rollouts)
        outcomes: list[Outcome] = []
        for group, outcome in zip(groups, await self._batched_groups.outcomes(groups), strict=True):
            outcomes += [outcome] * len(group) if isinstance(outcome, RewardError) else outcome
        return outcomes

    async def _group_results(
        self, groups: Sequence[Sequence[rollout_pb2.Rollout]]
    ) -> list[list[RewardResult]]:
        return [await self._results(group) for group in groups]

    def _extra_columns(self, rollouts: Sequence[rollout_pb2.Rollout]) -> dict[str, list[Any]]:
        auxiliary = self._auxiliary if rollouts[0].purpose == self._training else ()
        sampled = len(rollouts) - len(auxiliary)
        return {
            SAMPLE_INDEX: [rollout.sample for rollout in rollouts],
            SAMPLE_KIND: [*[_POLICY] * sampled, *auxiliary],
        }


def split_groups(rollouts: Sequence[rollout_pb2.Rollout]) -> list[list[rollout_pb2.Rollout]]:
    """Return the groups of rollouts that follow one another, each in the order of its samples.

    A request that is delivered twice is two groups.
    """
    groups: list[list[rollout_pb2.Rollout]] = []
    for rollout in rollouts:
        last = groups[-1][-1] if groups else None
        if last is None or rollout.group_id != last.group_id or rollout.sample <= last.sample:
            groups.append([])
        groups[-1].append(rollout)
    return groups
