"""Frozen models: the reference, the teacher and the reward models."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from kubealign.spec.sections.precision import Precision
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.offload.host_offloader import make_offloader
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import HeadPooling, read_pooling, score_names
from kubealign_services.training.torch_backend.model.fsdp import local_shard, reshard, shard_model
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.passes.microbatch_passes import RankContext, run_forward
from kubealign_services.training.torch_backend.passes.topk_logprobs import run_topk_logprobs
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype


class FrozenTorchModel:
    """A model without gradients, in one process or sharded over several ranks.

    Its weights can be offloaded to the CPU while another model needs the accelerator. The passes of a sharded
    model are collective: every rank calls them with the same arguments, and all get the same results.
    """

    def __init__(self, model: PackedModel, context: RankContext) -> None:
        """Use `load` instead."""
        self._model = model
        self._context = context
        self._offloader = make_offloader(self._resident_tensors, context.device)

    @classmethod
    def load(
        cls,
        folder: Path,
        head: Head,
        precision: Precision,
        microbatch_tokens: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> "FrozenTorchModel":
        """Load a Hugging Face folder onto this rank's device.

        Raises what `load_model` and `shard_model` raise.

        Args:
            world_size: Ranks of the process group that share the model, each with a shard of the weights; 1:
                this rank holds the whole model.
        """
        device = compute_device()
        model = load_model(folder, head, compute_dtype(precision)).requires_grad_(False)
        if world_size == 1:
            return cls(model.to(device), RankContext(0, 1, device, microbatch_tokens))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # Each block moves to the device when it is sharded, so that the device never holds the whole model.
        # The weights have the precision of the arithmetic: FSDP2 converts nothing.
        shard_model(model, Precision.FLOAT32, world_size, device)
        return cls(model, RankContext(rank, world_size, device, microbatch_tokens))

    @property
    def pooling(self) -> HeadPooling | None:
        """Pooling of token scores into a response's score, as a reward model's config states it; None when
        the config does not.
        """
        return read_pooling(self._model.backbone.config)

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of a reward model's scores, in the order of its outputs."""
        return score_names(self._model.backbone.config)

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Compute some of logprobs, entropy, values, as in ModelOutputs, after reloading the model onto its
        device. Returns float32 [T] (values of N scores: [T, N]) on the CPU.
        """
        self.to_device()
        columns = run_forward(self._model, batch, outputs, self._context)
        reshard(self._model)
        return columns

    def topk_logprobs(self, batch: Batch, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Compute `run_topk_logprobs` after reloading the model onto its device."""
        self.to_device()
        result = run_topk_logprobs(self._model, batch, count, vocabulary, self._context)
        reshard(self._model)
        return result

    def to_device(self) -> "FrozenTorchModel":
        """Reload the weights onto the accelerator."""
        self._offloader.reload()
        return self

    def offload(self) -> "FrozenTorchModel":
        """Free the accelerator's memory.

        The weights are copied to host memory the first time only, since they never change.
        """
        self._offloader.offload()
        return self

    def _resident_tensors(self) -> Iterator[Tensor]:
        yield from (local_shard(parameter) for parameter in self._model.parameters())
        yield from self._model.buffers()
