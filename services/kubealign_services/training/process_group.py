"""The default process group that a model's ranks share."""

import datetime

import torch
import torch.distributed as dist


def ensure_process_group(world_size: int) -> None:
    """Create the process group of a single rank if none exists. Raises ValueError when the process group has
    another size,
    RuntimeError when several ranks have none.
    """
    if not dist.is_initialized():
        if world_size > 1:
            raise RuntimeError(
                f"{world_size} ranks have no process group: join a CommandGroup before making the backend"
            )
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
            timeout=datetime.timedelta(minutes=10),
        )
    if dist.get_world_size() != world_size:
        raise ValueError(
            f"the process group has {dist.get_world_size()} ranks, the backend was given {world_size}"
        )
