"""Optimiser fields of the torch backend: 8-bit moments, Muon, and optimiser state in host memory."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from kubealign.spec.base import SpecModel, field_errors
from kubealign.spec.paths import DocumentPath

if TYPE_CHECKING:
    from kubealign.spec.sections.training import Trainer

#: Values below which a weight keeps fp32 moments; the default of bitsandbytes.
MIN_8BIT_VALUES = 4096
#: Values of a block, which have one fp32 scale: the block size of bitsandbytes' optimisers.
BLOCK_VALUES = 256

#: Errors of optimiser fields.
MUON_WITH_LORA = (
    "muon orthogonalises the update of a whole matrix, and lora trains two factors of it, whose product has "
    "no such update: remove muon, or lora"
)
MUON_IS_TORCHS = "the megatron backend has AdamW only: remove muon, or set backend.torch"
STATES_ARE_TORCHS = "the megatron backend has fp32 moments only: write Float32, or set backend.torch"
DEVICE_IS_TORCHS = (
    "the megatron backend keeps its optimiser state on the accelerators: write Accelerator, or set "
    "backend.torch"
)
RATE_IS_REQUIRED = (
    "is required: only learningRateAdjustment MatchRmsAdamW suits the learning rate of adamW; 0.02 is usual "
    "for Original"
)


class MomentStates(StrEnum):
    """Float32: 8 bytes per weight.

    Blockwise8Bit: 2 bytes per weight: one byte per moment, and an fp32 scale per 256 values (Dettmers et al.
    2022, 8-bit Optimizers via Block-wise Quantization). Embeddings, a head that is tied to them, and weights
    of fewer than 4,096 values keep fp32 moments. Needs the package bitsandbytes:
    pip install 'kubealign[bitsandbytes]'.
    """

    FLOAT32 = "Float32"
    BLOCKWISE_8BIT = "Blockwise8Bit"


class OptimizerDevice(StrEnum):
    """Accelerator: moments and optimiser step are where the weights are.

    Host: a copy of the trained weights, their gradients and moments are in host memory, where the optimiser
    step runs (Ren et al. 2021, ZeRO-Offload); the accelerator has the weights and the gradients.
    """

    ACCELERATOR = "Accelerator"
    HOST = "Host"


class LearningRateAdjustment(StrEnum):
    """Factor of the learning rate for a matrix of A outputs and B inputs, as in torch.optim.Muon.

    MatchRmsAdamW: 0.2 sqrt(max(A, B)), which suits the learning rates of AdamW (Liu et al. 2025, Muon is
    Scalable for LLM Training). Original: sqrt(max(1, A / B)) (Jordan et al. 2024). SpectralUnclamped:
    sqrt(A / B) (Bernstein 2025).
    """

    MATCH_RMS_ADAM_W = "MatchRmsAdamW"
    ORIGINAL = "Original"
    SPECTRAL_UNCLAMPED = "SpectralUnclamped"


class Muon(SpecModel):
    """Momentum whose update is orthogonalised by Newton-Schulz iterations (Jordan et al. 2024, Muon).

    Applies to the matrices of the model's blocks, and to each expert's matrix of a stack of experts. AdamW
    trains the others: embeddings, heads, vectors.
    """

    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate; it follows the schedule of AdamW's. null: that of adamW, for which "
        "learningRateAdjustment must be MatchRmsAdamW.",
    )
    momentum: float = Field(0.95, ge=0, lt=1, description="Decay rate of the mean of the gradients.")
    nesterov: bool = Field(True, description="Nesterov's momentum.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of the matrices.")
    newton_schulz_steps: int = Field(
        5, ge=1, le=20, description="Newton-Schulz iterations, in bf16 as in torch.optim.Muon."
    )
    learning_rate_adjustment: LearningRateAdjustment = Field(
        LearningRateAdjustment.MATCH_RMS_ADAM_W,
        description="Factor of the learning rate, by the shape of the matrix.",
    )

    @model_validator(mode="after")
    def _has_learning_rate(self) -> "Muon":
        """Check that the learning rate of AdamW is only used with the adjustment that is made for it."""
        if self.learning_rate is None and self.learning_rate_adjustment is not (
            LearningRateAdjustment.MATCH_RMS_ADAM_W
        ):
            raise field_errors(type(self).__name__, (("learningRate",), None, RATE_IS_REQUIRED))
        return self


def optimizer_problems(trainer: "Trainer") -> Iterator[tuple[DocumentPath, Any, str]]:
    """Yield (path below the trainer, value, message) of each optimiser field that cannot be used.

    Muon excludes an adapter, and the megatron backend has fp32 AdamW on its accelerators only.
    """
    optimizer = trainer.optimizer
    states, device = optimizer.adam_w.states, optimizer.device
    if trainer.backend.megatron is not None:
        if optimizer.muon is not None:
            yield ("optimizer", "muon"), optimizer.muon.model_dump(by_alias=True), MUON_IS_TORCHS
        if states is not MomentStates.FLOAT32:
            yield ("optimizer", "adamW", "states"), states, STATES_ARE_TORCHS
        if device is not OptimizerDevice.ACCELERATOR:
            yield ("optimizer", "device"), device, DEVICE_IS_TORCHS
    elif optimizer.muon is not None and trainer.lora is not None:
        yield ("optimizer", "muon"), optimizer.muon.model_dump(by_alias=True), MUON_WITH_LORA
