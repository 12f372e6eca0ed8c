"""Imitation: of demonstrations, and of a teacher."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.method import Offline


class SFT(Offline):
    """Supervised fine-tuning: cross-entropy on the response's tokens."""

    data: ClassVar[str] = "demonstrations"
    turns: ClassVar[bool] = True


class Divergence(StrEnum):
    """Between teacher and student, at each token. Forward: KL(teacher || student). Reverse: KL(student ||
    teacher)."""

    FORWARD = "Forward"
    REVERSE = "Reverse"


class Distillation(Offline):
    """Token-level knowledge distillation (Hinton et al. 2015): the teacher's distribution at each token of
    the demonstrations' responses. Distillation by sequences is sft on what a generate job of the teacher
    wrote."""

    data: ClassVar[str] = "demonstrations"
    turns: ClassVar[bool] = True
    teacher: ClassVar[bool] = True

    candidates: int = Field(
        32,
        ge=1,
        le=4096,
        description="The teacher's likeliest tokens at each place, whose probabilities are learned; all "
        "others count as one.",
    )
    temperature: float = Field(1.0, gt=0, description="Both distributions are softened by it.")
    divergence: Divergence = Field(Divergence.FORWARD, description="What is minimised.")
    cross_entropy_coefficient: float = Field(
        0.0, ge=0, description="Weight of the cross-entropy on the demonstrations' own tokens."
    )
