"""Specs of supervised fine-tuning and distillation."""

from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import OfflineSpec
from kubealign.spec.algorithms.teacher_distribution import TeacherDistribution


class SFTSpec(OfflineSpec):
    """Supervised fine-tuning: cross-entropy on the response's tokens."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.sft:SFTAlgorithm"
    data: ClassVar[str] = "demonstrations"
    turns: ClassVar[bool] = True
    #: TRL's SFTConfig.
    learning_rate: ClassVar[float] = 2.0e-5

    router_loss_coefficient: float | None = Field(
        None,
        ge=0,
        description="Mixtures of experts with trainer.backend.torch: weight of the load-balancing loss of "
        "the routers (Fedus et al. 2021), over all tokens of a minibatch. null: router_aux_loss_coef of "
        "the model's config.json if it states output_router_logits, otherwise 0.",
    )


class DistillationSpec(TeacherDistribution, OfflineSpec):
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

    cross_entropy_coefficient: float = Field(
        0.0, ge=0, description="Weight of the cross-entropy on the demonstrations' tokens."
    )

    @property
    def teacher_distribution(self) -> TeacherDistribution | None:
        return self
