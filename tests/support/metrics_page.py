"""What docs/metrics.md says that a step reports."""

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
OFFLINE = ("sft/", "rm/", "val/")
CRITIC = ("critic/", "value/", "seconds/values")


def online_figures(rewards: Sequence[str], *, critic: bool, kl_in_loss: bool) -> set[str]:
    """The names, from the first column of the page's tables, of a job that samples and measures a KL.

    critic: PPO; without one the groups' rewards are compared (RLOO, GRPO)."""
    figures, _, _ = PAGE.read_text().partition("\n## Heartbeats")
    rows = [line.split("|")[1] for line in figures.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row) if not name.startswith(OFFLINE)}
    names |= {name.replace("NAME", reward) for name in names for reward in rewards}
    names = {name for name in names if "NAME" not in name}
    if critic:
        names.discard("reward/constant_groups")
    else:
        names = {name for name in names if not name.startswith(CRITIC)}
    if not kl_in_loss:
        names.discard("policy/kl_loss")
    return names
