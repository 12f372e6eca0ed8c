"""The training backend for models that fit no single accelerator: NVIDIA's megatron-core."""

from enum import StrEnum

from pydantic import Field

from kubealign.spec.base import MOST, Spec
from kubealign.spec.precision import Precision


class Recompute(StrEnum):
    """What is computed again in the backward pass instead of being kept. Nothing; Attention: the attention's
    core (Korthikanti et al. 2022); Layers: every layer from its input."""

    NOTHING = "Nothing"
    ATTENTION = "Attention"
    LAYERS = "Layers"


class MegatronBackend(Spec):
    """megatron-core: the trainer's ranks split into tensor x pipeline x context x data parallel. For Llama,
    Qwen2, Qwen3 and Mistral, and their mixtures of experts."""

    precision: Precision = Field(Precision.FLOAT32, description="Of weights and arithmetic.")
    microbatch_tokens: int = Field(
        8192,
        ge=1,
        le=MOST,
        description="Most tokens of one packed forward pass through the pipeline. Changes no gradient.",
    )
    tensor_parallel: int = Field(1, ge=1, le=1024, description="Ranks that share each layer's matrices.")
    pipeline_parallel: int = Field(1, ge=1, le=1024, description="Stages that the layers are cut into.")
    context_parallel: int = Field(1, ge=1, le=1024, description="Ranks that share each sequence's tokens.")
    expert_parallel: int = Field(
        1, ge=1, le=1024, description="Ranks that share the experts of a mixture's layers."
    )
    sequence_parallel: bool = Field(
        True,
        description="Ranks of one tensor group also share the tokens between their matrices "
        "(Korthikanti et al. 2022). Without effect where tensorParallel is 1.",
    )
    distributed_optimizer: bool = Field(
        True, description="Data-parallel ranks share the optimiser's state (Rajbhandari et al. 2020, ZeRO-1)."
    )
    recompute: Recompute = Field(
        Recompute.NOTHING, description="What is computed again in the backward pass to save memory."
    )

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the model between them, each sequence included."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel
