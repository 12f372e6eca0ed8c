"""Selects the training backend that a spec names, for trained models and for the frozen models beside
them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign_services.training.contract import FrozenBackend, Head, TrainingBackend
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel


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
    pooling: HeadPooling | None = None,
    scores: Sequence[str] = (),
    attributes: Mapping[str, float] | None = None,
) -> TrainingBackend:
    """Create the model of a Hugging Face folder with its first weights, on all ranks; arguments as for
    `TorchTrainingBackend.create`. Raises what the backend's own `create` raises.
    """
    create: Callable[..., TrainingBackend] = TorchTrainingBackend.create
    if spec.backend.megatron is not None:
        # Imported on demand: the import takes seconds, and the package is an extra.
        from kubealign_services.training.megatron_backend.backend import MegatronTrainingBackend

        create = MegatronTrainingBackend.create
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
        attributes=attributes,
    )


def load_frozen(folder: Path, head: Head, spec: Trainer, *, rank: int, world_size: int) -> FrozenBackend:
    """Load a frozen model that shares the processes of a trained one.

    With torch each rank holds the whole model; with Megatron the frozen model is split as the trained one is.
    Raises what the backend's own loading raises.

    Args:
        spec: The spec of the trained model.
    """
    if spec.backend.megatron is not None:
        from kubealign_services.training.megatron_backend.frozen_model import FrozenMegatronModel

        return FrozenMegatronModel(folder, head, spec, rank, world_size)
    backend = spec.backend.value
    return FrozenTorchModel.load(folder, head, backend.precision, backend.microbatch_tokens, rank)
