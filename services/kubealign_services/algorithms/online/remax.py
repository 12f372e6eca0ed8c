"""ReMax: REINFORCE with the greedy response's reward as baseline."""

import torch
from torch import Tensor

from kubealign_services.algorithms.losses.surrogate import LogLikelihood
from kubealign_services.algorithms.online.base import OnlineAlgorithm
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.packed import Batch


class ReMaxAlgorithm(OnlineAlgorithm):
    """Li et al. 2023, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning
    Large Language Models", algorithm 1.

    REINFORCE whose baseline is the reward of the greedy response to the same prompt, which gets no KL
    penalty and is not trained on:

        A_i = reward_i - beta * (sum over its tokens of KL_t) - reward of the prompt's greedy response

        loss = mean over sequences of -A_i log p(response_i) - entropy_coefficient H

    and then normalised as `advantage` says; by default not at all. The greedy response is the group's
    auxiliary sequence.
    """

    def surrogate(self) -> LogLikelihood:
        return LogLikelihood()

    def shape_rewards(self, batch: Batch) -> dict[str, float]:
        """Add the sequence column baseline as well."""
        metrics = super().shape_rewards(batch)
        batch.sequence_columns["baseline"] = greedy_baseline(batch.sequence("shaped_rewards"), batch)
        return metrics

    def compared(self, returns: Tensor, batch: Batch) -> Tensor:
        return super().compared(returns - batch.sequence("baseline"), batch)


def greedy_baseline(rewards: Tensor, batch: Batch) -> Tensor:
    """Return for each sequence the reward of its group's auxiliary sequence, the greedily decoded response.

    Several auxiliary sequences are averaged. `rewards` and the result: [S]. Raises ValueError for a group
    without an auxiliary sequence.
    """
    is_baseline = ~trainable_mask(batch)
    numbers, group_index = torch.unique(batch.sequence("group"), return_inverse=True)
    counts = torch.zeros(len(numbers), dtype=rewards.dtype)
    counts = counts.index_add(0, group_index, is_baseline.to(rewards.dtype))
    if bool((counts == 0).any()):
        missing = numbers[counts == 0].tolist()
        raise ValueError(f"groups {missing} have no greedy response as baseline")
    totals = torch.zeros_like(counts).index_add(0, group_index[is_baseline], rewards[is_baseline])
    return (totals / counts)[group_index]
