"""Combination of rewards by source to one reward per sequence: standardised, clipped, weighted, summed.

Pure but for `state` and a warning.

The state holds the moments of each source's rewards, as JSON: name -> {count, mean, squares}, where
squares is the sum of squared distances from the mean. Batches are merged by Chan, Golub and LeVeque 1979,
so resuming loses nothing.
"""

import logging
import math
from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor

from kubealign.spec.sections.rewards import Reward, RewardStandardization
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import (
    END_OF_TURN,
    OF_TURNS,
    RAW,
    TRANSFORMED,
    TURN_ENDS,
    TURN_REWARDS,
    WEIGHT,
    applies_to,
    is_unrewarded,
)

Moments = dict[str, float]

# A standard deviation below this share of the mean is rounding error.
_ROUNDING = 1e-9

log = logging.getLogger(__name__)


class _UnrewardedWarning:
    """Warning about the first sample of the process to which no reward applies."""

    def __init__(self) -> None:
        self._is_logged = False

    def log_once(self, sample: str) -> None:
        """Log the sample unless another one has been logged."""
        if not self._is_logged:
            self._is_logged = True
            log.warning(
                "no reward applies to a sample, so its reward is 0; all such samples are counted in "
                "reward/unrewarded_share",
                extra={"sample": sample},
            )


_unrewarded_warning = _UnrewardedWarning()


def combine_rewards(
    batch: Batch, rewards: Sequence[Reward], step: int, state: MutableMapping[str, Moments]
) -> dict[str, float]:
    """Add the sequence column `rewards` (float32 [S]), the weighted sum over the sources; return the step's
    metrics.

    The summands stay known: sequence columns transformed.NAME (float32 [S]), and scalars weight.NAME. Where a
    source has rewards of turns or steps, turn_rewards (float32 [T]) has the parts of the sum that belong to
    single tokens, divided by the source's standard deviation and weighted, and turn_ends (uint8 [T]) marks
    these tokens, but for sources with weight 0. The rest of the sum (the mean, and the effects of clip and
    truncated_value) belongs to the response as a whole.

    Reads the sequence columns reward.NAME (any floating dtype [S]), applies.NAME (uint8 [S], see
    `reward_columns`) and truncated (uint8 [S]), and the token columns turn_reward.NAME (float64 [T]) and
    turn_end.NAME (uint8 [T]). For each source: (reward - mean) / std, then the clip, then truncated_value in
    place of the reward of truncated responses, which do not count in the moments. A source whose rewards are
    all equal is divided by 1, and firstSteps keeps counting until they differ: a standard deviation of zero
    would be kept for ever. A source adds 0 to the sequences to which it does not apply; these count in none
    of its moments and metrics.

    Auxiliary sequences get their reward, but count in no moment and no metric. Metrics: reward/mean,
    reward/std of the sum; reward/NAME/mean, reward/NAME/std of a source's raw rewards, if it applies to any
    sequence; standard deviations are the population's. reward/unrewarded_share: share of the sequences to
    which no reward applies, where a reward has `sources` or does not apply to all sequences. The first such
    sequence of the process is logged.

    Args:
        step: From 1.
        state: Modified.
    """
    truncated, counted = batch.sequence("truncated").bool(), trainable_mask(batch)
    total = torch.zeros(len(batch), dtype=torch.float64)
    by_turn: Tensor | None = None
    turn_ends = torch.zeros(len(batch.tokens), dtype=torch.bool)
    metrics: dict[str, float] = {}
    for reward in rewards:
        raw, applies = batch.sequence(f"{RAW}{reward.name}").double(), applies_to(batch, reward.name)
        scored = counted & applies
        if bool(scored.any()):
            metrics |= _mean_and_std_metrics(f"reward/{reward.name}", raw[scored])
        transformed = _transform(raw, truncated, scored, reward, step, state).where(applies, 0.0)
        batch.sequence_columns[f"{TRANSFORMED}{reward.name}"] = transformed.float()
        batch.scalars[f"{WEIGHT}{reward.name}"] = reward.weight
        total += reward.weight * transformed
        turns = batch.token_columns.get(f"{OF_TURNS}{reward.name}")
        if turns is not None:
            share = reward.weight * _scale_turns(turns, batch, reward, state)
            by_turn = share if by_turn is None else by_turn + share
            if reward.weight:
                turn_ends |= _rewarded_ends(batch, reward)
    if by_turn is not None:
        batch.token_columns[TURN_REWARDS] = by_turn.float()
        batch.token_columns[TURN_ENDS] = turn_ends.to(torch.uint8)
    batch.sequence_columns["rewards"] = total.float()
    return (
        _mean_and_std_metrics("reward", total[counted]) | metrics | _unrewarded_share(batch, rewards, counted)
    )


def _unrewarded_share(batch: Batch, rewards: Sequence[Reward], counted: Tensor) -> dict[str, float]:
    """Return reward/unrewarded_share, or no metric where each reward applies to each sequence."""
    if all(reward.sources is None and bool(applies_to(batch, reward.name).all()) for reward in rewards):
        return {}
    unrewarded = counted & is_unrewarded(batch)
    if bool(unrewarded.any()):
        _unrewarded_warning.log_once(batch.sample_ids[int(unrewarded.nonzero()[0])])
    return {"reward/unrewarded_share": float(unrewarded[counted].double().mean())}


def merge_moments(moments: Moments, values: Tensor) -> Moments:
    """Return the moments with these values [N] included."""
    count = moments["count"] + len(values)
    if len(values) == 0:
        return dict(moments)
    mean = float(values.mean())
    distance = mean - moments["mean"]
    return {
        "count": count,
        "mean": moments["mean"] + distance * len(values) / count,
        "squares": moments["squares"]
        + float((values - mean).square().sum())
        + distance**2 * moments["count"] * len(values) / count,
    }


def _transform(
    raw: Tensor,
    truncated: Tensor,
    learned: Tensor,
    reward: Reward,
    step: int,
    state: MutableMapping[str, Moments],
) -> Tensor:
    value = raw
    if reward.standardize is not None:
        counted = raw[learned if reward.truncated_value is None else learned & ~truncated]
        mean, std = _mean_and_std(reward.name, reward.standardize, counted, step, state)
        value = (raw - mean) / std
    if reward.clip is not None:
        value = value.clamp(-reward.clip, reward.clip)
    if reward.truncated_value is not None:
        value = torch.where(truncated, torch.full_like(value, reward.truncated_value), value)
    return value


def _scale_turns(turns: Tensor, batch: Batch, reward: Reward, state: MutableMapping[str, Moments]) -> Tensor:
    """Divide the raw rewards of turns [T] of a source by the standard deviation that its sums are divided by;
    those of responses with a truncated_value are 0.
    """
    scaled = turns
    if reward.standardize is not None:
        fixed = reward.standardize.fixed
        scaled = turns / (fixed.std if fixed is not None else _std(state[reward.name]) or 1.0)
    if reward.truncated_value is not None:
        truncated = batch.sequence("truncated").bool()[batch.sequence_of_token]
        scaled = scaled.where(~truncated, 0.0)
    return scaled


def _rewarded_ends(batch: Batch, reward: Reward) -> Tensor:
    """Return True at the tokens at which a source rewards a turn, bool [T]; at none of a response with a
    truncated_value.
    """
    ends = batch.token(f"{END_OF_TURN}{reward.name}").bool()
    if reward.truncated_value is not None:
        ends = ends & ~batch.sequence("truncated").bool()[batch.sequence_of_token]
    return ends


def _mean_and_std(
    name: str,
    standardize: RewardStandardization,
    counted: Tensor,
    step: int,
    state: MutableMapping[str, Moments],
) -> tuple[float, float]:
    if standardize.fixed is not None:
        return standardize.fixed.mean, standardize.fixed.std
    moments = state.get(name, {"count": 0.0, "mean": 0.0, "squares": 0.0})
    if standardize.first_steps is None or step <= standardize.first_steps.steps or _std(moments) == 0:
        moments = merge_moments(moments, counted)
        state[name] = moments
    return moments["mean"], _std(moments) or 1.0


def _std(moments: Moments) -> float:
    if moments["count"] == 0:
        return 0.0
    std = math.sqrt(moments["squares"] / moments["count"])
    return std if std > _ROUNDING * max(1.0, abs(moments["mean"])) else 0.0


def _mean_and_std_metrics(name: str, values: Tensor) -> dict[str, float]:
    return {f"{name}/mean": float(values.mean()), f"{name}/std": float(values.std(correction=0))}
