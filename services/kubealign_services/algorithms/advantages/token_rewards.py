"""Rewards of responses and of their steps, placed at tokens."""

from torch import Tensor

from kubealign_services.algorithms.advantages.gae import last_response_tokens
from kubealign_services.batch.packed import Batch, sequence_sums


def place_rewards(batch: Batch, rewards: Tensor, penalty: Tensor, step_rewards: Tensor | None) -> Tensor:
    """Return the reward of each token, [T] in the dtype of `penalty`.

    A token has the reward of the step, or turn, that ends at it, less its penalty; the last token of a
    response also has the rest of the response's reward. Reads the token column loss_mask.

    Args:
        rewards: [S], the step rewards included.
        penalty: Floating [T], KL penalty of each token.
        step_rewards: [T], 0 where no step ends; None: responses are rewarded as a whole.
    """
    placed = -penalty
    rest = rewards
    if step_rewards is not None:
        placed += step_rewards.to(placed.dtype)
        rest = rewards - sequence_sums(step_rewards, batch)
    last, sequences = last_response_tokens(batch.token("loss_mask").bool(), batch.cu_seqlens)
    placed[last] += rest[sequences].to(placed.dtype)
    return placed
