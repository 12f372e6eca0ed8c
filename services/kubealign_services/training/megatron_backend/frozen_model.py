"""Frozen models split over the same ranks as a trained one: a reference WithTrainer, a reward model
WithCritic.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from kubealign.spec.sections.training import Trainer
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.offload.contract import Offloadable
from kubealign_services.runtime.offload.host_offloader import make_offloader
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import HeadPooling, read_pooling, score_names
from kubealign_services.training.megatron_backend.loading import (
    ModelSource,
    StageModel,
    load_model,
    megatron_spec,
)
from kubealign_services.training.megatron_backend.pipeline import Pipeline
from kubealign_services.training.megatron_backend.weights.head_init import read_config


class FrozenMegatronModel:
    """`FrozenBackend` on megatron-core.

    The weights are loaded by the first call, since the rendezvous comes after construction; every call is
    collective.
    """

    def __init__(self, folder: Path, head: Head, spec: Trainer, rank: int, world_size: int) -> None:
        """Read the config.

        Raises ValueError for a folder without a model; the errors of `MegatronTrainingBackend.create` come
        with the first call.

        Args:
            spec: Spec of the trained model, whose layout and precision are used.
        """
        self._config = read_config(folder)
        self._source = ModelSource(folder, head)
        self._spec = spec.model_copy(update={"lora": None})
        self._rank = rank
        self._world_size = world_size
        self._loaded_model: tuple[StageModel, Pipeline, Offloadable] | None = None

    @property
    def pooling(self) -> HeadPooling | None:
        """See FrozenBackend."""
        return read_pooling(self._config)

    @property
    def scores(self) -> tuple[str, ...]:
        """See FrozenBackend."""
        return score_names(self._config)

    @torch.no_grad()
    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See FrozenBackend."""
        model, pipeline, swap = self._ensure_loaded()
        swap.reload()
        model.check_batch(batch, outputs)
        return pipeline.forward(batch, outputs, model.output_widths(batch))

    def offload(self) -> None:
        """See FrozenBackend. This rank's host copy is made once, since the weights never change."""
        if self._loaded_model is not None:
            self._loaded_model[2].offload()

    def _ensure_loaded(self) -> tuple[StageModel, Pipeline, Offloadable]:
        if self._loaded_model is None:
            model, _ = load_model(self._source, self._spec, self._rank, self._world_size)
            model.stage.requires_grad_(False)
            pipeline = Pipeline(
                model.stage,
                model.conversion.layout,
                model.world_size,
                model.device,
                megatron_spec(self._spec).microbatch_tokens,
            )

            def tensors() -> Iterator[Tensor]:
                yield from model.stage.parameters()
                yield from model.stage.buffers()

            self._loaded_model = model, pipeline, make_offloader(tensors, model.device)
        return self._loaded_model
