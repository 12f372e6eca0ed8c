"""Training of a model: backend, optimiser, learning rate schedule, LoRA.

Policy and critic have the same fields.
"""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from kubealign.spec.base import (
    MAX_INT32,
    PROCESSES_PER_POD,
    ProcessesPerPod,
    Ranks,
    SpecModel,
    SpecUnion,
    field_errors,
    require_equal_pods,
)
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.optimizers import MomentStates, Muon, OptimizerDevice, optimizer_problems
from kubealign.spec.sections.precision import Precision

Fraction = Annotated[float, Field(ge=0, le=1)]


class TorchBackendSpec(SpecModel):
    """Plain PyTorch; several ranks shard the model with FSDP2 (NCCL on GPUs, gloo on CPUs)."""

    precision: Precision = Field(Precision.FLOAT32, description="Precision of weights and computation.")
    microbatch_tokens: int = Field(
        8192,
        ge=1,
        le=MAX_INT32,
        description="Maximum tokens of a packed microbatch on one rank: a microbatch that contextParallel "
        "ranks share may have that many times the tokens. Does not change the gradient.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    activation_offload: bool = Field(
        False,
        description="Keep the activations that the backward pass needs in host memory; with "
        "gradientCheckpointing the inputs of the blocks. Changes no gradient, and nothing on a CPU.",
    )
    context_parallel: int = Field(
        1,
        ge=1,
        le=1024,
        description="Ranks that share the tokens of each microbatch, for sequences that are too long for one "
        "rank (Jacobs et al. 2023, DeepSpeed Ulysses). Must divide ranks and the model's attention heads.",
    )


class Backend(SpecUnion):
    """Training backend."""

    default_member = "torch"

    torch: TorchBackendSpec | None = Field(None, description="Plain PyTorch.")
    megatron: MegatronBackendSpec | None = Field(None, description="NVIDIA's megatron-core.")


def _as_tuple(value: Any) -> Any:
    """Return a list as a tuple: a validator before the spec's own makes Python objects of a document."""
    return tuple(value) if isinstance(value, list) else value


class AdamW(SpecModel):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate. null: 2e-5 for sft, distillation and rejectionSampling (TRL's SFT), "
        "1e-5 for rewardModel (InstructGPT: 9e-6) and for critics (verl), 5e-7 for other preference methods "
        "and their rounds (Zephyr's DPO), 8e-6 for orpo (its paper), 1e-6 for online and plugin algorithms "
        "(DeepSeekMath, TRL, verl); ten times that with lora (Schulman et al. 2025, LoRA Without Regret).",
    )
    betas: Annotated[tuple[Fraction, Fraction], BeforeValidator(_as_tuple)] = Field(
        (0.9, 0.95), description="Decay rates of the first and second moment of the gradient."
    )
    epsilon: float = Field(1.0e-8, gt=0, description="Added to the square root of the second moment.")
    weight_decay: float = Field(
        0.0, ge=0, description="Decoupled weight decay; not applied to biases and normalisation weights."
    )
    states: MomentStates = Field(
        MomentStates.FLOAT32, description="Representation of the moments; only Float32 with megatron."
    )


class WarmupSpec(SpecModel):
    """Linear warm-up, in steps or as a fraction of the job."""

    warmup_steps: int = Field(0, ge=0, le=MAX_INT32, description="Warm-up in optimiser steps.")
    warmup_fraction: Fraction = Field(
        0.0,
        description="Warm-up as a fraction of the job's optimiser steps, rounded, in place of warmupSteps.",
    )

    @model_validator(mode="after")
    def _one_warmup(self) -> "WarmupSpec":
        if self.warmup_steps and self.warmup_fraction:
            text = f"warmupSteps ({self.warmup_steps}) gives the warm-up too: remove one of them"
            raise field_errors(type(self).__name__, (("warmupFraction",), self.warmup_fraction, text))
        return self


class ConstantSchedule(WarmupSpec):
    """Linear warm-up, then a constant learning rate."""


class LinearSchedule(WarmupSpec):
    """Linear warm-up, a constant phase, then a linear decay to the floor at the end of the job."""

    decay_fraction: Fraction = Field(
        1.0,
        description="Fraction of the optimiser steps after warm-up over which the learning rate decays; "
        "before it is constant.",
    )
    floor: Fraction = Field(0.0, description="Final learning rate as a fraction of the peak.")


class CosineSchedule(WarmupSpec):
    """Linear warm-up, a constant phase, a half-cosine decay to the floor, then the floor."""

    decay_fraction: Fraction = Field(
        1.0,
        description="Fraction of the optimiser steps between warm-up and floorSteps over which the learning "
        "rate decays; before it is constant.",
    )
    floor: Fraction = Field(0.1, description="Final learning rate as a fraction of the peak.")
    floor_steps: int = Field(
        0,
        ge=0,
        le=MAX_INT32,
        description="Last optimiser steps of the job, at the floor (NeMo's constant_steps).",
    )


class LearningRateSchedule(SpecUnion):
    """Learning rate schedule over the optimiser steps of the job."""

    default_member = "constant"

    constant: ConstantSchedule | None = Field(None, description="Constant.")
    linear: LinearSchedule | None = Field(None, description="Linear decay.")
    cosine: CosineSchedule | None = Field(None, description="Cosine decay.")


class Optimizer(SpecModel):
    """Optimiser, learning rate schedule and gradient clipping."""

    adam_w: AdamW = Field(AdamW(), alias="adamW", description="Parameters of AdamW.")
    muon: Muon | None = Field(
        None,
        description="Train the matrices of the blocks with Muon, and the other weights with AdamW; null: all "
        "with AdamW. Not with lora or megatron.",
    )
    device: OptimizerDevice = Field(
        OptimizerDevice.ACCELERATOR,
        description="Memory of the optimiser state and place of the optimiser step; only Accelerator with "
        "megatron.",
    )
    schedule: LearningRateSchedule = Field(
        LearningRateSchedule(constant=ConstantSchedule()), description="Learning rate schedule."
    )
    gradient_clip_norm: float = Field(
        1.0, ge=0, description="Maximum global L2 norm of the gradient; 0: no clipping."
    )


class LoraLayerKind(StrEnum):
    """AllLinear: all linear layers except the heads.

    Attention: the linear layers of the attention. Mlp: the other linear layers of the blocks. Experts: the
    stacked weights of a mixture's experts, each expert with matrices of its own; the other kinds leave them
    as they are.
    """

    ALL_LINEAR = "AllLinear"
    ATTENTION = "Attention"
    MLP = "Mlp"
    EXPERTS = "Experts"


#: Error of a quantised base on the megatron backend.
NO_MEGATRON_QUANTIZATION = "the megatron backend quantises no weights: remove it, or set backend.torch"

#: Suffix of a layer's name.
LayerName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class LoraTargetLayers(SpecUnion):
    """Layers that are adapted."""

    kind: LoraLayerKind | None = Field(None, description="A kind of layers.")
    names: Annotated[list[LayerName], Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Suffixes of layer names in the Hugging Face model, such as q_proj, and of stacked "
        "experts, such as experts.down_proj.",
    )

    @property
    def has_experts(self) -> bool:
        """True if stacked experts are adapted."""
        return self.kind is LoraLayerKind.EXPERTS or any(names_experts(name) for name in self.names or ())


def names_experts(name: str) -> bool:
    """Return True for the name, or the suffix of it, of a stacked weight of a module of experts."""
    return name.rpartition(".")[0].rpartition(".")[2] == "experts"


class Nf4Quantization(SpecModel):
    """4-bit NormalFloat (Dettmers et al. 2023, QLoRA): 16 levels, scaled by the largest magnitude of each 64
    weights.
    """

    double_quantization: bool = Field(
        True,
        description="Store the scales in 8 bits, in blocks of 256 with a scale of their own: 4.127 bits per "
        "weight in place of 4.5.",
    )


class BaseQuantization(SpecUnion):
    """Format of the frozen weights below an adapter."""

    default_member = "nf4"

    nf4: Nf4Quantization | None = Field(None, description="4-bit NormalFloat, by bitsandbytes.")


class Lora(SpecModel):
    """Low-rank adaptation (Hu et al. 2021): W + alpha / rank * B A, where only A and B are trained."""

    rank: int = Field(16, ge=1, le=65536, description="Rank of the adapter.")
    alpha: float = Field(32.0, gt=0, description="Scale of the adapter, divided by the rank.")
    dropout: Fraction = Field(0.0, description="Dropout probability of the adapter's inputs in training.")
    targets: LoraTargetLayers = Field(
        LoraTargetLayers(kind=LoraLayerKind.ALL_LINEAR), description="Layers that are adapted."
    )
    dora: bool = Field(
        False, description="Separate magnitude and direction (Liu et al. 2024, DoRA), as in peft."
    )
    quantization: BaseQuantization | None = Field(
        None,
        description="Quantise the frozen linear layers of the blocks (torch backend); null: they have the "
        "precision of the computation. The model that is trained, sampled and exported, and the reference "
        "AdapterOff, are then the quantised one.",
    )

    @model_validator(mode="after")
    def _experts(self) -> "Lora":
        """Check that adapters of experts have neither dropout nor magnitudes, which peft has not either."""
        if self.targets.has_experts and self.dropout:
            raise field_errors("Lora", (("dropout",), self.dropout, "stacked experts have no dropout: set 0"))
        if self.targets.has_experts and self.dora:
            raise field_errors("Lora", (("dora",), True, "stacked experts have no DoRA: set false"))
        return self


class Trainer(SpecModel):
    """Training of a model, and its number of ranks."""

    ranks: Ranks = Field(
        1,
        description="Processes that share the training; each holds a shard of the model and the "
        "optimiser state.",
    )
    processes_per_pod: ProcessesPerPod | None = Field(None, description=PROCESSES_PER_POD)
    backend: Backend = Field(Backend(torch=TorchBackendSpec()), description="Training backend.")
    optimizer: Optimizer = Field(
        Optimizer(), description="Optimiser, learning rate schedule and gradient clipping."
    )
    lora: Lora | None = Field(
        None,
        description="Train an adapter (and a value or score head) and freeze the other weights; null: "
        "train all weights.",
    )
    step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="Timeout of a command (a step, a save), after which the trainer counts as lost.",
    )
    pod_template: PodTemplate | None = Field(None, description="Patch of the ranks' pods.")

    @model_validator(mode="after")
    def _layout(self) -> "Trainer":
        """Check that the optimiser and the quantisation of the base suit the backend, and the ranks the pods
        and the backend's parallelism.
        """
        require_equal_pods(self, self.processes_per_pod, self.ranks)
        problems = list(optimizer_problems(self))
        if problems:
            raise field_errors("Trainer", *problems)
        torch = self.backend.torch
        if torch is not None and self.ranks % torch.context_parallel:
            text = f"must be a multiple of backend.torch.contextParallel ({torch.context_parallel})"
            raise field_errors("Trainer", (("ranks",), self.ranks, text))
        megatron = self.backend.megatron
        if megatron is None:
            return self
        if self.lora is not None and self.lora.quantization is not None:
            member = self.lora.quantization.member
            raise field_errors("Trainer", (("lora", "quantization"), member, NO_MEGATRON_QUANTIZATION))
        if self.ranks % megatron.model_parallel:
            text = (
                "must be a multiple of tensorParallel x pipelineParallel x contextParallel "
                f"({megatron.model_parallel})"
            )
            raise field_errors("Trainer", (("ranks",), self.ranks, text))
        if self.ranks % (megatron.tensor_parallel * megatron.pipeline_parallel * megatron.expert_parallel):
            text = "x tensorParallel x pipelineParallel must divide trainer.ranks"
            path = ("backend", "megatron", "expertParallel")
            raise field_errors("Trainer", (path, megatron.expert_parallel, f"{text} ({self.ranks})"))
        if megatron.expert_parallel > 1 and megatron.tensor_parallel > 1 and not megatron.sequence_parallel:
            path = ("backend", "megatron", "sequenceParallel")
            text = "must be true where both expertParallel and tensorParallel are above 1"
            raise field_errors("Trainer", (path, megatron.sequence_parallel, text))
        return self


class HeadInit(StrEnum):
    """Zero: all values are 0 at first. RewardModel: the reward model's head, which the model must have.

    Of a model with several scores it is the sum of their heads with the weights of rewards[].attributes; a
    model named by critic.model must have a single score.
    """

    ZERO = "Zero"
    REWARD_MODEL = "RewardModel"
