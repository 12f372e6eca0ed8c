"""Rewards and metrics of an episode of verifiers. Pure."""

import re
from typing import Any

from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.scoring.functions.results import RESERVED_METRICS, RewardResult
from kubealign_services.scoring.shortened_text import shorten

#: Most characters of an error of the package, which may have the output of a program in it.
_MAX_ERROR = 1000
_MAX_NAME = 63


def read_result(episode: Any, policy: str) -> RewardResult:
    """Return the weighted sum of the rewards of the policy's rollout, and its metrics.

    Several rewards are metrics too, each without its weight.

    Args:
        episode: vf.Episode that ended. policy: name of the agent that is the policy.

    Raises:
        EnvironmentFailed: The rollout or its scoring failed, the policy played not exactly once, or nothing
            rewards the rollout.
    """
    if not episode.ok:
        raise EnvironmentFailed(f"failed: {_describe_failure(episode)}")
    traces = [trace for trace in episode.traces if trace.agent.name == policy]
    if len(traces) != 1:
        raise EnvironmentFailed(
            f"ran the agent {policy} {len(traces)} times in an episode; a response has one reward",
            permanent=True,
        )
    (trace,) = traces
    rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    if not rewards:
        raise EnvironmentFailed("gives no reward: its task has no method with @vf.reward", permanent=True)
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    if len(rewards) > 1:
        metrics = {name: reward.score for name, reward in rewards.items()} | metrics
    terms = " + ".join(f"{reward.weight:g} * {name} ({reward.score:g})" for name, reward in rewards.items())
    return RewardResult(
        float(trace.reward), {metric_name(name): float(value) for name, value in metrics.items()}, terms
    )


def metric_name(name: str) -> str:
    """Return a name that kubealign allows for a metric of verifiers."""
    allowed = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip("_.-")[:_MAX_NAME] or "metric"
    return f"{allowed}_value" if allowed in RESERVED_METRICS else allowed


def _describe_failure(episode: Any) -> str:
    """Return the first error of an episode or of one of its agents."""
    errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
    if not errors:
        return "it gave no error"
    return shorten(f"{errors[0].type}: {errors[0].message}", _MAX_ERROR)
