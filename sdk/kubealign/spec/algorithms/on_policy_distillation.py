"""Spec of on-policy distillation."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.base import Requirement
from kubealign.spec.algorithms.kl import KL, KLEstimator, KLPlacement, kl_in_reward
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec
from kubealign.spec.algorithms.teacher_distribution import TeacherDistribution
from kubealign.spec.base import SpecModel, field_errors
from kubealign.spec.placeholders import placeholder_names
from kubealign.spec.sections.data import Template

#: The only KL penalty whose value at a token is the teacher's judgement of that token.
KL_REMEDY = "each token's advantage is log p_teacher - log p: set placement Reward, estimator K1 and fixed"


#: The template of a user's message replaces the message.
HINT_REMEDY = "must have {prompt} in it: the filled template replaces the prompt"


class HintMessage(StrEnum):
    """User: the template replaces the user's last message, or the text prompt. System: the filled template is
    the system message, after the text of the row's own system message.
    """

    USER = "User"
    SYSTEM = "System"


class Hint(SpecModel):
    """Privileged information in the teacher's prompt, which the policy does not see (Zhao et al. 2026, OPSD).

    The teacher judges the policy's response as if it followed the hinted prompt.
    """

    template: Template = Field(
        description="Text with column names in braces, such as a column with the solution of the row. "
        "{prompt} is the text prompt or the user's last message as the policy reads it. {{ and }} stand for "
        "braces."
    )
    message: HintMessage = Field(
        HintMessage.USER, description="Message with the hint; text prompts have only User."
    )

    @model_validator(mode="after")
    def _keeps_prompt(self) -> "Hint":
        if self.message is HintMessage.USER and "prompt" not in placeholder_names(self.template):
            raise field_errors("Hint", (("template",), self.template, HINT_REMEDY))
        return self


class OnPolicyDistillationSpec(ClippedRatioSpec):
    """On-policy distillation (Agarwal et al. 2024; Gu et al. 2024; Lu et al. 2025): the policy samples, and a
    teacher judges each of its tokens.

    The teacher is the reference: `reference.model` names it; with a hint it may be the policy's own initial
    weights. With `distribution` the policy learns the teacher's whole distribution at its own tokens (Agarwal
    et al. 2024, GKD), and `teacher.model` names the teacher. With `teachers`, each source of a mixture of
    prompts has its own teacher in either case. Rewards may be added.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.online.on_policy_distillation:OnPolicyDistillationAlgorithm"
    )
    rewards: ClassVar[Requirement] = Requirement.ALLOWED
    token_advantages: ClassVar[bool] = True
    accepts_branches: ClassVar[bool] = False
    several_teachers: ClassVar[bool] = True
    reference_model: ClassVar[Requirement] = Requirement.NEEDED

    kl: KL = Field(
        kl_in_reward(1.0),
        description="Divergence from the teacher. fixed.coefficient is the weight of the teacher's "
        "judgement, or with distribution of the divergence, beside the rewards; placement must be Reward and "
        "estimator K1.",
    )
    hint: Hint | None = Field(
        None,
        description="Information that only the teacher's prompt contains (self-distillation); null: the "
        "teacher reads the policy's prompt. With a hint, reference.model may be left out: the teacher is "
        "then the policy's initial weights.",
    )

    distribution: TeacherDistribution | None = Field(
        None,
        description="Learn the teacher's distribution at each sampled token, by the gradient of the "
        "divergence itself; null: each token is judged by its own probability. With a distribution the "
        "teacher is teacher.model instead of reference.model.",
    )

    @property
    def teacher_distribution(self) -> TeacherDistribution | None:
        return self.distribution

    @property
    def needs_reference_model(self) -> bool:
        """True if the teacher is the reference and must be another model than the policy's initial weights,
        which a hint makes another teacher.
        """
        return self.hint is None and self.distribution is None

    @property
    def uses_reference(self) -> bool:
        """True if the teacher is the reference."""
        return self.distribution is None and super().uses_reference

    @model_validator(mode="after")
    def _divergence_of_tokens(self) -> "OnPolicyDistillationSpec":
        is_of_tokens = self.kl.placement is KLPlacement.REWARD and self.kl.estimator is KLEstimator.K1
        if not is_of_tokens or self.kl.fixed is None or self.kl.fixed.coefficient == 0:
            raise field_errors("OnPolicyDistillation", (("kl",), self.kl, KL_REMEDY))
        return self
