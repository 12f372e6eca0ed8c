"""A few samples of a step, as a person reads them."""

import json
from collections.abc import Sequence
from typing import Any

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.ledger import Group


def previews(groups: Sequence[Group], batch: Batch, version: int, count: int = 4) -> list[dict[str, Any]]:
    """The first sample of the first `count` groups, with its rewards. `batch` holds the groups' samples in
    their order."""
    rewards = {
        name.removeprefix("reward."): column
        for name, column in batch.sequence_columns.items()
        if name.startswith("reward.")
    }
    shown = []
    for index, group in enumerate(groups[:count]):
        place = batch.sequence("group").tolist().index(index)
        rollout = group.rollouts[min(group.rollouts)]
        shown.append(
            {
                "prompt": json.loads(rollout.columns)["prompt"],
                "response": rollout.response,
                "reward": float(batch.sequence("rewards")[place]),
                "rewards": {name: float(column[place]) for name, column in rewards.items()},
                "weight_version": version,
                "truncated": bool(batch.sequence("truncated")[place]),
                "group_id": group.group_id,
                "purpose": "train",
            }
        )
    return shown
