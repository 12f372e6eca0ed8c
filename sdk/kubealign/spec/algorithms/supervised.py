"""Specs of supervised fine-tuning and distillation."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import OfflineSpec


class SFTSpec(OfflineSpec):
    """Supervised fine-tuning: cross-entropy on the response's tokens."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.sft:SFTAlgorithm"
    data: ClassVar[str] = "demonstrations"
    turns: ClassVar[bool] = True
    #: TRL's SFTConfig.
    learning_rate: ClassVar[float] = 2.0e-5


class DistillationDivergence(StrEnum):
    """Forward: KL(teacher || student). Reverse: KL(student || teacher)."""

    FORWARD = "Forward"
    REVERSE = "Reverse"


class DistillationSpec(OfflineSpec):
    """Token-level knowledge distillation (Hinton et al. 2015).

    The student learns the teacher's distribution at each token of the demonstrations' responses. For
    sequence-level distillation, use sft on the rows that a generate job of the teacher produced.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.offline.distillation:DistillationAlgorithm"
    )
    data: ClassVar[str] = "demonstrations"
    turns: ClassVar[bool] = True
    teacher: ClassVar[bool] = True
    #: TRL's GKDConfig, which is its SFTConfig.
    learning_rate: ClassVar[float] = 2.0e-5

    candidates: int = Field(
        32,
        ge=1,
        le=4096,
        description="Top-K: number of the teacher's most likely tokens per position whose probabilities are "
        "learned; all other tokens share the remaining probability.",
    )
    temperature: float = Field(1.0, gt=0, description="Softmax temperature of both distributions.")
    divergence: DistillationDivergence = Field(
        DistillationDivergence.FORWARD,
        description="Divergence between teacher and student that is minimised.",
    )
    cross_entropy_coefficient: float = Field(
        0.0, ge=0, description="Weight of the cross-entropy on the demonstrations' tokens."
    )
