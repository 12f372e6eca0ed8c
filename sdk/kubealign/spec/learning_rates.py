"""Peak learning rate of a trained model: that of the spec, or the default of algorithm and adapter."""

from dataclasses import dataclass
from typing import TypeVar

from kubealign.spec.sections.training import Trainer

#: LoRA's optimum is about ten times that of full fine-tuning (Schulman et al. 2025, LoRA Without Regret).
LORA_FACTOR = 10.0

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


@dataclass(frozen=True)
class LearningRate:
    """Peak learning rate. `origin`: the field that sets it, or the default that applies."""

    value: float
    origin: str


def resolve_learning_rate(trainer: Trainer, section: str, default: float, purpose: str) -> LearningRate:
    """Return the peak learning rate of a trained model.

    Args:
        trainer: The model's section of the spec, named `section`.
        default: Learning rate for full fine-tuning where the spec names none.
        purpose: Algorithm or role that the default belongs to, for the origin.
    """
    value = trainer.optimizer.adam_w.learning_rate
    if value is not None:
        return LearningRate(value, f"spec.{section}.optimizer.adamW.learningRate")
    if trainer.lora is not None:
        return LearningRate(LORA_FACTOR * default, f"default for {purpose} with LoRA")
    return LearningRate(default, f"default for {purpose}")


def with_learning_rate(trainer: AnyTrainer, value: float) -> AnyTrainer:
    """Return the section with this peak learning rate."""
    adam_w = trainer.optimizer.adam_w.model_copy(update={"learning_rate": value})
    optimizer = trainer.optimizer.model_copy(update={"adam_w": adam_w})
    return trainer.model_copy(update={"optimizer": optimizer})
