"""Spec of the megatron-core training backend, for models that do not fit on one accelerator."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import MAX_INT32, SpecModel, field_errors
from kubealign.spec.sections.precision import Precision

#: Error of the precision Float16.
FLOAT16_MESSAGE = (
    "the megatron backend has no loss scaling, which Float16 needs: write BFloat16 or Float32, or set "
    "backend.torch"
)


class Recompute(StrEnum):
    """Nothing: all activations are kept.

    Attention: the core of the attention is recomputed (Korthikanti et al. 2022). Layers: every layer is
    recomputed from its input.
    """

    NOTHING = "Nothing"
    ATTENTION = "Attention"
    LAYERS = "Layers"


class MegatronBackendSpec(SpecModel):
    """NVIDIA's megatron-core: the ranks are split into tensor x pipeline x context x data parallelism.

    Supports Llama, Qwen2, Qwen3 and Mistral, and their mixture-of-experts models.
    """

    precision: Precision = Field(Precision.FLOAT32, description="Precision of weights and computation.")
    microbatch_tokens: int = Field(
        8192,
        ge=1,
        le=MAX_INT32,
        description="Maximum tokens per packed microbatch in the pipeline. Does not change the gradient.",
    )
    tensor_parallel: int = Field(
        1, ge=1, le=1024, description="Ranks that share each layer's matrices (tensor parallelism)."
    )
    pipeline_parallel: int = Field(
        1, ge=1, le=1024, description="Stages into which the layers are divided (pipeline parallelism)."
    )
    context_parallel: int = Field(
        1, ge=1, le=1024, description="Ranks that share each sequence's tokens (context parallelism)."
    )
    expert_parallel: int = Field(
        1,
        ge=1,
        le=1024,
        description="Ranks that share the experts of a mixture-of-experts layer (expert parallelism).",
    )
    sequence_parallel: bool = Field(
        True,
        description="Divide the activations between the matrices over the tensor-parallel ranks "
        "(Korthikanti et al. 2022). No effect if tensorParallel is 1.",
    )
    distributed_optimizer: bool = Field(
        True,
        description="Shard the optimiser state over the data-parallel ranks (Rajbhandari et al. 2020, "
        "ZeRO-1).",
    )
    recompute: Recompute = Field(
        Recompute.NOTHING, description="Activations that are recomputed in the backward pass to save memory."
    )

    @model_validator(mode="after")
    def _no_loss_scaling(self) -> "MegatronBackendSpec":
        """Check the precision: in fp16 without loss scaling, small gradients would be rounded to zero."""
        if self.precision is Precision.FLOAT16:
            raise field_errors(type(self).__name__, (("precision",), self.precision, FLOAT16_MESSAGE))
        return self

    @property
    def model_parallel(self) -> int:
        """Ranks that together hold one copy of the model and of each sequence."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel
