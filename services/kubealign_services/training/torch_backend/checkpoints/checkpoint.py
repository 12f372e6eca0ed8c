"""A rank's checkpoint shard: its slices of the trained weights and the optimiser's state, the progress of the
learning rate schedule, the loss scale of fp16, and the RNG states. Of a model with an adapter only the
adapter is saved; the base weights are in the folder that the model was loaded from.

`shard-RANK-of-RANKS.safetensors` holds the tensors; a JSON file of the same name describes them, with the
digest of the tensor file and its own. Both files are synced to disk when `save_shard` returns.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from kubealign.spec.sections.training import Lora
from kubealign_services.training.contract import CorruptCheckpoint
from kubealign_services.training.files.shard_files import (
    adapter_identity,
    check_adapter,
    file_digest,
    read_shard_description,
    write_shard,
)
from kubealign_services.training.torch_backend.loss_scaling import LossScaler, LossScaleState
from kubealign_services.training.torch_backend.model.fsdp import local_shard
from kubealign_services.training.torch_backend.optimizers.shard_optimizer import ShardOptimizer

_FORMAT = 1


def save_shard(
    directory: Path,
    model: nn.Module,
    optimizer: ShardOptimizer,
    updates: int,
    rank: int,
    world_size: int,
    lora: Lora | None = None,
    loss_scaler: LossScaler | None = None,
) -> list[str]:
    """Write this rank's two files into an existing folder.

    Returns their names. Raises OSError, naming the file that cannot be written.

    Args:
        updates: Optimiser steps done.
        lora: Settings of the adapter.
        loss_scaler: Loss scaling of a model in fp16.
    """
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, parameter in _trained_parameters(model).items():
        shapes[name] = list(parameter.shape)
        tensors[f"weight.{name}"] = local_shard(parameter.detach())
        for state, tensor in optimizer.saved_state(parameter).items():
            tensors[f"{state}.{name}"] = tensor
    tensors_file, description_file = _shard_paths(directory, rank, world_size)
    description = {
        "format": _FORMAT,
        "rank": rank,
        "world_size": world_size,
        "updates": updates,
        "adapter": adapter_identity(lora),
        "parameters": shapes,
    }
    if loss_scaler is not None:
        description["loss_scale"] = asdict(loss_scaler.state())
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return write_shard(tensors_file, on_cpu, description_file, description)


def load_shard(
    directory: Path,
    model: nn.Module,
    optimizer: ShardOptimizer,
    rank: int,
    world_size: int,
    lora: Lora | None = None,
    loss_scaler: LossScaler | None = None,
) -> int:
    """Read a checkpoint of `save_shard` into a model of the same shape and adapter.

    The loss scale after a checkpoint of another precision is that of a new run. Returns the number of
    optimiser steps done.

    Raises CorruptCheckpoint, naming the file, before anything is changed.
    """
    tensors_file, description_file = _shard_paths(directory, rank, world_size)
    description = _read_description(description_file)
    check_adapter(description_file, description.get("adapter"), adapter_identity(lora))
    parameters = _trained_parameters(model)
    shapes = {name: list(parameter.shape) for name, parameter in parameters.items()}
    if description["parameters"] != shapes:
        differing = sorted(
            name
            for name in shapes.keys() | description["parameters"].keys()
            if shapes.get(name) != description["parameters"].get(name)
        )
        raise CorruptCheckpoint(
            f"{description_file} is of another model: {', '.join(differing[:5])} differ in name or shape"
        )
    tensors = _read_tensors(tensors_file, description["tensors_digest"])
    states = _states_by_parameter(tensors)
    _check_tensors(tensors_file, tensors, states, parameters, optimizer)
    with torch.no_grad():
        for name, parameter in parameters.items():
            local_shard(parameter).copy_(tensors[f"weight.{name}"])
            optimizer.restore_state(parameter, states.get(name, {}))
    if loss_scaler is not None:
        loss_scale = description.get("loss_scale")
        loss_scaler.load(None if loss_scale is None else LossScaleState(**loss_scale))
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    return int(description["updates"])


def _trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _shard_paths(directory: Path, rank: int, world_size: int) -> tuple[Path, Path]:
    stem = f"shard-{rank:05d}-of-{world_size:05d}"
    return directory / f"{stem}.safetensors", directory / f"{stem}.json"


def _read_description(path: Path) -> dict[str, Any]:
    if not path.exists():
        shards = sorted(file.name for file in path.parent.glob("shard-*")) if path.parent.is_dir() else []
        raise CorruptCheckpoint(f"{path} does not exist; the folder holds {', '.join(shards) or 'no shards'}")
    description = read_shard_description(path)
    if description["format"] != _FORMAT:
        raise CorruptCheckpoint(f"{path} has format {description['format']}; this version reads {_FORMAT}")
    return description


def _read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    try:
        if file_digest(path) != digest:
            raise CorruptCheckpoint(f"{path} is not as it was written: its digest differs")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
    return tensors


def _states_by_parameter(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the optimiser state of each parameter that has one: its tensors by the state's names."""
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind not in ("weight", "rng"):
            states.setdefault(name, {})[kind] = tensor
    return states


def _check_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    states: dict[str, dict[str, Tensor]],
    parameters: dict[str, nn.Parameter],
    optimizer: ShardOptimizer,
) -> None:
    """Check that every parameter's slice exists in the shape of this rank's slice, with the state of the
    optimiser or none.
    """
    if "rng.cpu" not in tensors:
        raise CorruptCheckpoint(f"{path} lacks rng.cpu")
    for name, parameter in parameters.items():
        saved, expected = states.get(name, {}), optimizer.state_shapes(parameter)
        if saved and saved.keys() != expected.keys():
            raise CorruptCheckpoint(
                f"{path} holds {', '.join(sorted(saved))} as the optimiser's state of {name}; this job's "
                f"optimiser has {', '.join(sorted(expected))}: set trainer.optimizer (or critic.optimizer) "
                "as in the job that wrote the checkpoint"
            )
        shapes = {"weight": local_shard(parameter).shape} | (expected if saved else {})
        for kind, shape in shapes.items():
            tensor = tensors.get(f"{kind}.{name}")
            if tensor is None or tensor.shape != shape:
                actual = "nothing" if tensor is None else tuple(tensor.shape)
                raise CorruptCheckpoint(
                    f"{path} holds {actual} for {kind}.{name}; this rank's slice is {tuple(shape)}"
                )
