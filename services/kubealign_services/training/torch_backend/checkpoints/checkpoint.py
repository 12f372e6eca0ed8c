"""A rank's checkpoint shard: its slices of the trained weights and their moments, the progress of the
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

_FORMAT = 1
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_shard(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
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
        for moment in _MOMENTS:
            if moment in optimizer.state.get(parameter, {}):
                tensors[f"{moment}.{name}"] = local_shard(optimizer.state[parameter][moment])
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
    optimizer: torch.optim.Optimizer,
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
    _check_tensors(tensors_file, tensors, parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            local_shard(parameter).copy_(tensors[f"weight.{name}"])
            optimizer.state.pop(parameter, None)
            if f"step.{name}" in tensors:
                optimizer.state[parameter] = state = {
                    "step": tensors[f"step.{name}"],
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
                for moment in ("exp_avg", "exp_avg_sq"):
                    local_shard(state[moment]).copy_(tensors[f"{moment}.{name}"])
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


def _check_tensors(path: Path, tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter]) -> None:
    """Check that every parameter's slice exists in the shape of this rank's slice."""
    if "rng.cpu" not in tensors:
        raise CorruptCheckpoint(f"{path} lacks rng.cpu")
    for name, parameter in parameters.items():
        kinds = ["weight"] + (["exp_avg", "exp_avg_sq"] if f"step.{name}" in tensors else [])
        for kind in kinds:
            tensor = tensors.get(f"{kind}.{name}")
            if tensor is None or tensor.shape != local_shard(parameter).shape:
                shape = "nothing" if tensor is None else tuple(tensor.shape)
                raise CorruptCheckpoint(
                    f"{path} holds {shape} for {kind}.{name}; "
                    f"this rank's slice is {tuple(local_shard(parameter).shape)}"
                )
