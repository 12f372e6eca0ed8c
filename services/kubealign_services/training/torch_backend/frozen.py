"""Models that are only asked: the reference, the teacher and the reward models."""

from pathlib import Path

from torch import Tensor

from kubealign.spec.precision import Precision
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.likeliest import run_likeliest
from kubealign_services.training.torch_backend.models import POOLING, load_model, score_names
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

    @classmethod
    def load(
        cls, folder: Path, head: Head, precision: Precision, microbatch_tokens: int, rank: int = 0
    ) -> "FrozenModel":
        """A Hugging Face folder, on this rank's device. Raises what `load_model` raises."""
        model = load_model(folder, head, compute_dtype(precision)).requires_grad_(False)
        return cls(model, Place(0, 1, compute_device(rank), microbatch_tokens)).to_device()

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
        self._model.to(self._place.device)
        return self

    def offload(self) -> "FrozenModel":
        self._model.to("cpu")
        return self
