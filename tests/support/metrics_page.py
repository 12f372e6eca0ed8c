"""Metric names of a step according to docs/metrics.md."""

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
#: Reported only with an option of the spec: training in fp16, an importance correction, an overlong penalty,
#: a dual clip, another trust region, a likelihood of good responses, a mask, a workflow, a validation, a
#: mixture of sources, rewards that do not apply to all responses
#: or whose function fails, streamed rows, a curriculum, reward models
#: beside the critic, or a teacher of samples.
ASKED_FOR = (
    "checkpoint/",
    "seconds/record",
    "seconds/score/critic",
    "seconds/score/teacher",
    "seconds/validation",
    "trainer/loss_scale",
    "trainer/skipped_updates",
    "critic/loss_scale",
    "critic/skipped_updates",
    "importance/",
    "policy/behaviour_kl",
    "policy/clip_dual_fraction",
    "policy/entropy_threshold",
    "policy/high_covariance_fraction",
    "policy/high_entropy_fraction",
    "policy/off_policy_masked_fraction",
    "policy/positive_nll",
    "policy/soft_weight",
    "reward/overlong_penalty",
    "reward/source/",
    "reward/NAME/errors",
    "reward/NAME/timeouts",
    "reward/unrewarded_share",
    "data/source/",
    "data/rows_read",
    "curriculum/",
    "rollout/reference_gap_mean",
    "rollout/sequences_per_sample",
    "rollout/turns",
    "rollout/tool_errors",
)
OFFLINE = (
    "sft/",
    "distillation/",
    "preference/",
    "reference/",
    "teacher/",
    "seconds/teacher",
    "rm/",
    "router/",
    "val/",
    "round/",
    "seconds/judge",
    "seconds/reference",
    "data/rows",
    "data/position",
    "data/left_out/",
    "revision/",
    "comparison/",
    "seconds/revise",
    "seconds/compare",
)
CRITIC = ("critic/", "value/", "seconds/values", "seconds/train/")


def online_figures(rewards: Sequence[str], *, critic: bool, kl_in_loss: bool) -> set[str]:
    """Return the metric names, from the first column of the page's tables, of a job that samples and measures
    a KL divergence.

    critic: the job has a critic (PPO); otherwise it compares the rewards of groups (RLOO, GRPO)."""
    figures, _, _ = PAGE.read_text().partition("\n## Heartbeats")
    rows = [line.split("|")[1] for line in figures.splitlines() if line.startswith("| `")]
    left_out = (*OFFLINE, *ASKED_FOR)
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row) if not name.startswith(left_out)}
    names |= {name.replace("NAME", reward) for name in names for reward in rewards}
    names = {name for name in names if "NAME" not in name}
    if critic:
        names.discard("reward/constant_groups")
    else:
        names = {name for name in names if not name.startswith(CRITIC)}
    if not kl_in_loss:
        names.discard("policy/kl_loss")
    return names
