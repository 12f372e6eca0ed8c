"""Checks of reward models that score the steps of responses."""

from transformers import PretrainedConfig

from kubealign.spec.algorithms import STEPS_POOLING
from kubealign.spec.sections.rewards import Reward
from kubealign_services.data.errors import DataError
from kubealign_services.training.files.hf_heads import read_pooling, score_names

#: Most outputs of a head that classifies steps: wrong and right.
_MOST_OUTPUTS = 2


def check_process_reward(reward: Reward, config: PretrainedConfig, spec_path: str) -> None:
    """Check that a reward asks its model for scores of steps, or of responses, as the model was trained.

    A model whose config states no pooling may be either. Raises DataError.

    Args:
        config: Of the model, or of one in the ensemble.
        spec_path: Path of the model in the spec.
    """
    pooling = read_pooling(config)
    if reward.steps is None:
        if pooling is not None and pooling.name == STEPS_POOLING:
            raise DataError(
                f"{spec_path}: it is a process reward model, which scores the steps of responses: set steps "
                f"of the reward, with the separator {pooling.step_separator!r}"
            )
        return
    if pooling is not None and pooling.name != STEPS_POOLING:
        raise DataError(
            f"{spec_path}: it is a reward model of whole responses ({pooling.name}): remove steps of the "
            "reward, or name a process reward model"
        )
    if pooling is not None and pooling.step_separator != reward.steps.separator:
        raise DataError(
            f"{spec_path}: it was trained with the separator {pooling.step_separator!r} between steps, and "
            f"steps.separator of the reward is {reward.steps.separator!r}: write the same"
        )
    names = score_names(config)
    if len(names) > _MOST_OUTPUTS:
        raise DataError(
            f"{spec_path}: it has the scores {', '.join(names)}; a process reward model has one, the logit "
            "of a right step, or two, the logits of a wrong and of a right one"
        )
