"""The training backend that a spec names."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kubealign.spec.training import HeadInit, Trainer
from kubealign_services.training.contract import Head, TrainingBackend
from kubealign_services.training.torch_backend.backend import TorchBackend


def create_backend(
    folder: Path,
    head: Head,
    spec: Trainer,
    total_updates: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    head_init: HeadInit = HeadInit.ZERO,
    pooling: str | None = None,
    scores: Sequence[str] = (),
) -> TrainingBackend:
    """The model of a Hugging Face folder with its first weights, on all ranks; arguments as
    `TorchBackend.create`. Raises what the backend's own `create` raises."""
    create: Callable[..., TrainingBackend] = TorchBackend.create
    if spec.backend.megatron is not None:
        # Imported only where it is used: it takes seconds, and it is an extra.
        from kubealign_services.training.megatron_backend.backend import MegatronBackend

        create = MegatronBackend.create
    return create(
        folder,
        head,
        spec,
        total_updates,
        rank=rank,
        world_size=world_size,
        seed=seed,
        head_init=head_init,
        pooling=pooling,
        scores=scores,
    )
