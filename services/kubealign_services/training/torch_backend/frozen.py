"""Models that are only asked: the reference, the teacher and the reward models."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from kubealign.spec.precision import Precision
from kubealign_services.batch.packed import Batch
from kubealign_services.residence.swap import swapping
from kubealign_services.training.contract import Head
from kubealign_services.training.hf_folder_heads import POOLING, score_names
from kubealign_services.training.torch_backend.likeliest import run_likeliest
from kubealign_services.training.torch_backend.models import load_model
from kubealign_services.training.torch_backend.packed_model import PackedModel
from kubealign_services.training.torch_backend.passes import Place, run_forward
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype


class FrozenModel:
    """A model without gradients, on one process. It may rest on the CPU while another needs the
    accelerator."""

    def __init__(self, model: PackedModel, place: Place) -> None:
        """Use `load`."""
        self._model = model
        self._place = place
        self._swap = swapping(self._tensors, place.device)

    @classmethod
    def load(
        cls, folder: Path, head: Head, precision: Precision, microbatch_tokens: int, rank: int = 0
    ) -> "FrozenModel":
        """A Hugging Face folder, on this rank's device. Raises what `load_model` raises."""
        device = compute_device(rank)
        model = load_model(folder, head, compute_dtype(precision)).requires_grad_(False)
        return cls(model.to(device), Place(0, 1, device, microbatch_tokens))

    @property
    def pooling(self) -> str | None:
        """How a reward model's config says that its tokens' scores become a response's; None: it does not
        say."""
        pooling = getattr(self._model.backbone.config, POOLING, None)
        return None if pooling is None else str(pooling)

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of a reward model's scores, in the order of its outputs."""
        return score_names(self._model.backbone.config)

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """Some of logprobs, entropy, values: float32 [T] (values of N scores: [T, N]) on the CPU, as in
        ModelOutputs. Brings the model back to its device."""
        self.to_device()
        return run_forward(self._model, batch, outputs, self._place)

    def likeliest(self, batch: Batch, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """See `run_likeliest`. Brings the model back to its device."""
        self.to_device()
        return run_likeliest(self._model, batch, count, vocabulary, self._place)

    def to_device(self) -> "FrozenModel":
        """Take the accelerator's memory again."""
        self._swap.reload()
        return self

    def offload(self) -> "FrozenModel":
        """Give the accelerator's memory back. The weights are copied to the host's the first time only, and
        rest there for good: they never change."""
        self._swap.offload()
        return self

    def _tensors(self) -> Iterator[Tensor]:
        yield from self._model.parameters()
        yield from self._model.buffers()
