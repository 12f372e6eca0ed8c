"""Loads a Hugging Face folder as this rank's stage with its first weights."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import sequence_temperatures
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.megatron_backend.cpu_shims import megatron_cpu_shims
from kubealign_services.training.megatron_backend.model.architecture import (
    ModelArchitecture,
    read_architecture,
)
from kubealign_services.training.megatron_backend.model.lora import add_adapters
from kubealign_services.training.megatron_backend.model.lora_layers import adapted_layers, init_lora_a
from kubealign_services.training.megatron_backend.model.stage import PipelineStage
from kubealign_services.training.megatron_backend.model.stage_builder import build_stage
from kubealign_services.training.megatron_backend.parallel.process_groups import (
    ParallelGroups,
    init_parallel_groups,
)
from kubealign_services.training.megatron_backend.weights.conversion import (
    HeadSizes,
    WeightConversion,
    build_conversions,
)
from kubealign_services.training.megatron_backend.weights.head_init import initial_head, read_config
from kubealign_services.training.megatron_backend.weights.load_hf import load_weights
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """Origin and head of a model, as `TorchTrainingBackend.create` takes them."""

    folder: Path
    head: Head
    seed: int = 0
    head_init: HeadInit = HeadInit.ZERO
    pooling: HeadPooling | None = None
    scores: tuple[str, ...] = ()
    attributes: Mapping[str, float] | None = None


@dataclass(frozen=True)
class StageModel:
    """Part of a model on one rank.

    Attributes:
        config: Config of the source folder.
        conversions: Conversions of all ranks.
    """

    source: ModelSource
    config: Any
    stage: PipelineStage
    groups: ParallelGroups
    conversions: list[WeightConversion]
    rank: int
    world_size: int
    device: torch.device

    @property
    def conversion(self) -> WeightConversion:
        """Weight conversion of the present rank."""
        return self.conversions[self.rank]

    def check_batch(self, batch: Batch, outputs: frozenset[str]) -> None:
        """See `check_batch`."""
        check_batch(batch, outputs, self.conversion.shape, self.conversion.heads)

    def output_widths(self, batch: Batch) -> dict[str, tuple[int, ...]]:
        """See `output_widths`."""
        return output_widths(batch, self.source.head, self.conversion.heads)


def load_model(
    source: ModelSource, spec: Trainer, rank: int, world_size: int
) -> tuple[StageModel, Mapping[str, Tensor] | None]:
    """Load the model.

    Also returns the fp32 weights that its own were rounded from, when all weights are trained in lower
    precision; else None. Collective. Raises as `MegatronTrainingBackend.create`.
    """
    megatron = megatron_spec(spec)
    device = compute_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    config = read_config(source.folder)
    first = initial_head(
        source.folder,
        config,
        source.head,
        source.head_init,
        source.seed,
        source.scores,
        source.attributes,
    )
    shape = read_architecture(config)
    adapted = None if spec.lora is None else adapted_layers(config, spec.lora)
    conversions = build_conversions(shape, megatron, world_size, first.sizes, adapted)
    layout = conversions[rank].layout
    groups = init_parallel_groups(layout, rank, world_size, spec.step_timeout_seconds)
    with megatron_cpu_shims():
        stage = build_stage(config, shape, megatron, layout, groups, source.head, first.sizes).to(device)
    weights = stage.weights()
    rounded = spec.lora is None and compute_dtype(megatron.precision) != torch.float32
    exact: Mapping[str, Tensor] = weights
    if rounded:
        exact = {name: tensor.detach().float() for name, tensor in weights.items()}
    load_weights(source.folder, conversions[rank], exact, first.initialised_parameters)
    with torch.no_grad():
        if first.score is not None and "score.weight" in weights:
            exact["score.weight"].copy_(first.score)
        for name, tensor in weights.items() if rounded else ():
            tensor.copy_(exact[name])
    if spec.lora is not None:
        dtype = compute_dtype(megatron.precision)
        downs = init_lora_a(config, spec.lora, source.seed, source.head, dtype)
        add_adapters(stage.trunk, conversions[rank], spec.lora, downs, groups.tensor)
    stage.eval()
    _log_stage(stage, source.folder, rank)
    model = StageModel(source, config, stage, groups, conversions, rank, world_size, device)
    return model, exact if rounded else None


def megatron_spec(spec: Trainer) -> MegatronBackendSpec:
    """Return the Megatron section of the spec. Raises ValueError when the spec names another backend."""
    if spec.backend.megatron is None:
        raise ValueError("trainer.backend.megatron is not set: the spec names another backend")
    return spec.backend.megatron


def check_batch(batch: Batch, outputs: frozenset[str], shape: ModelArchitecture, heads: HeadSizes) -> None:
    """Raise ValueError for tokens or positions that the model does not have, or for an output without a head.

    All ranks check the same batch, so none is left waiting for another.
    """
    lowest, highest = int(batch.tokens.min()), int(batch.tokens.max())
    if lowest < 0 or highest >= shape.vocabulary:
        raise ValueError(
            f"the batch holds token {lowest if lowest < 0 else highest}; "
            f"the model's vocabulary has {shape.vocabulary}"
        )
    longest = int(batch.lengths.max())
    if longest > shape.positions:
        raise ValueError(
            f"the batch holds a sequence of {longest} tokens; the model has {shape.positions} positions"
        )
    available = ({"values"} if heads.scores else set()) | (
        {"logprobs", "entropy", "collision", "candidate_logprobs"} if heads.vocabulary else set()
    )
    if not outputs <= available:
        raise ValueError(
            f"outputs {sorted(outputs - available)} were asked for; the model gives {sorted(available)}"
        )
    if "candidate_logprobs" in outputs and "candidates" not in batch.token_columns:
        raise ValueError("candidate_logprobs were asked for, and the batch has no column candidates")
    temperatures = {
        "temperature": sequence_temperatures(batch).tolist(),
        "candidates_temperature": [batch.scalars.get("candidates_temperature", 1.0)],
    }
    for name, values in temperatures.items():
        for value in values:
            if not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")


def output_widths(batch: Batch, head: Head, heads: HeadSizes) -> dict[str, tuple[int, ...]]:
    """Return each output's shape after [T]."""
    candidates = batch.token_columns.get("candidates")
    is_single = head is Head.VALUE or heads.scores == 1
    return {
        "logprobs": (),
        "entropy": (),
        "collision": (),
        "values": () if is_single else (heads.scores,),
        "candidate_logprobs": () if candidates is None else tuple(candidates.shape[1:]),
    }


def _log_stage(stage: PipelineStage, folder: Path, rank: int) -> None:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in stage.weights().values()]
    log.info(
        "stage made",
        extra={
            "folder": str(folder),
            "rank": rank,
            "parameters": sum(size for size, _ in sizes),
            "trainable_parameters": sum(size for size, is_trained in sizes if is_trained),
        },
    )
