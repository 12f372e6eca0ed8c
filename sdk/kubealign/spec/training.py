"""How a model is trained: backend, optimiser, schedule. Policy and critic have the same shape."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import MOST, Spec, Union, incoherent
from kubealign.spec.megatron import MegatronBackend
from kubealign.spec.pod_template import PodTemplate
from kubealign.spec.precision import Precision

Fraction = Annotated[float, Field(ge=0, le=1)]


class TorchBackend(Spec):
    """Plain PyTorch; several ranks shard the model by FSDP2 (NCCL on GPUs, gloo on CPUs)."""

    precision: Precision = Field(Precision.FLOAT32, description="Of weights and arithmetic.")
    microbatch_tokens: int = Field(
        8192,
        ge=1,
        le=MOST,
        description="Most tokens of one packed forward pass on one rank. Changes no gradient.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )


class Backend(Union):
    """What runs the training."""

    default_member = "torch"

    torch: TorchBackend | None = Field(None, description="Plain PyTorch.")
    megatron: MegatronBackend | None = Field(None, description="NVIDIA's megatron-core.")


class AdamW(Spec):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    learning_rate: float = Field(1.0e-6, gt=0, description="At the schedule's height.")
    betas: tuple[Fraction, Fraction] = Field(
        (0.9, 0.95), description="Decay of the running mean and of the running square of the gradient."
    )
    epsilon: float = Field(1.0e-8, gt=0, description="Added to the root of the running square.")
    weight_decay: float = Field(0.0, ge=0, description="Not applied to biases and normalisation weights.")


class ConstantSchedule(Spec):
    """Linear warm-up, then constant."""

    warmup_steps: int = Field(0, ge=0, le=MOST, description="Optimiser steps.")


class LinearSchedule(Spec):
    """Linear warm-up, constant, then a linear fall to the floor over the last part of the job."""

    warmup_steps: int = Field(0, ge=0, le=MOST, description="Optimiser steps.")
    decay_fraction: Fraction = Field(
        1.0,
        description="Share of the optimiser steps after warm-up over which it falls; the rest is constant.",
    )
    floor: Fraction = Field(0.0, description="Last learning rate as a share of the highest.")


class CosineSchedule(Spec):
    """Linear warm-up, then half a cosine down to the floor."""

    warmup_steps: int = Field(0, ge=0, le=MOST, description="Optimiser steps.")
    floor: Fraction = Field(0.1, description="Last learning rate as a share of the highest.")


class Schedule(Union):
    """The learning rate over the optimiser steps of the job."""

    default_member = "constant"

    constant: ConstantSchedule | None = Field(None, description="Stays.")
    linear: LinearSchedule | None = Field(None, description="Falls linearly.")
    cosine: CosineSchedule | None = Field(None, description="Falls as a cosine.")


class Optimizer(Spec):
    """The optimiser, its schedule and the bound on the gradient."""

    adam_w: AdamW = Field(AdamW(), alias="adamW", description="AdamW's numbers.")
    schedule: Schedule = Field(
        Schedule(constant=ConstantSchedule()), description="The learning rate over the job."
    )
    gradient_clip_norm: float = Field(
        1.0, ge=0, description="Largest global L2 norm of the gradient; 0: unbounded."
    )


class TargetKind(StrEnum):
    """Which linear layers. AllLinear: all but the heads. Attention: those of attention. Mlp: the others of
    the blocks; experts stacked in one tensor are no linear layers and stay as they are."""

    ALL_LINEAR = "AllLinear"
    ATTENTION = "Attention"
    MLP = "Mlp"


#: The end of a layer's name.
LayerName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class LoraTargets(Union):
    """The layers that are adapted."""

    kind: TargetKind | None = Field(None, description="A kind of layer.")
    names: Annotated[list[LayerName], Field(min_length=1, max_length=256)] | None = Field(
        None,
        description="Ends of the layers' names in the Hugging Face model, such as q_proj.",
    )


class Lora(Spec):
    """Low-rank adaptation (Hu et al. 2021): W + alpha / rank * B A, of which only A and B are trained."""

    rank: int = Field(16, ge=1, le=65536, description="Rows of A.")
    alpha: float = Field(32.0, gt=0, description="Scale of the adapter, over its rank.")
    dropout: Fraction = Field(0.0, description="Share of the adapter's inputs that are left out in training.")
    targets: LoraTargets = Field(LoraTargets(kind=TargetKind.ALL_LINEAR), description="Which layers.")
    dora: bool = Field(
        False, description="Magnitude and direction apart (Liu et al. 2024, DoRA); as peft does it."
    )


class Trainer(Spec):
    """How a model is trained, and on how many ranks."""

    ranks: int = Field(
        1,
        ge=1,
        le=1024,
        description="Processes that share the training; each holds a shard of model and optimiser.",
    )
    backend: Backend = Field(Backend(torch=TorchBackend()), description="What runs it.")
    optimizer: Optimizer = Field(
        Optimizer(), description="Optimiser, schedule and the bound on the gradient."
    )
    lora: Lora | None = Field(
        None,
        description="Train an adapter (and a value or score head) and leave the weights as they are; null: "
        "train all weights.",
    )
    step_timeout_seconds: float = Field(
        1800.0,
        gt=0,
        description="A command (a step, a save) that has not ended by then counts as a lost trainer.",
    )
    pod_template: PodTemplate | None = Field(None, description="Patch of the ranks' pods.")

    @model_validator(mode="after")
    def _layout(self) -> "Trainer":
        megatron = self.backend.megatron
        if megatron is None:
            return self
        if self.ranks % megatron.model_parallel:
            text = (
                "must be a multiple of tensorParallel x pipelineParallel x contextParallel "
                f"({megatron.model_parallel})"
            )
            raise incoherent("Trainer", (("ranks",), self.ranks, text))
        if self.ranks % (megatron.tensor_parallel * megatron.pipeline_parallel * megatron.expert_parallel):
            text = "x tensorParallel x pipelineParallel must divide trainer.ranks"
            place = ("backend", "megatron", "expertParallel")
            raise incoherent("Trainer", (place, megatron.expert_parallel, f"{text} ({self.ranks})"))
        if megatron.expert_parallel > 1 and megatron.tensor_parallel > 1 and not megatron.sequence_parallel:
            place = ("backend", "megatron", "sequenceParallel")
            text = "must be true where both expertParallel and tensorParallel are above 1"
            raise incoherent("Trainer", (place, megatron.sequence_parallel, text))
        return self


class HeadInit(StrEnum):
    """Zero: every value is 0 at first. RewardModel: the reward model's head (needs a model with one)."""

    ZERO = "Zero"
    REWARD_MODEL = "RewardModel"
