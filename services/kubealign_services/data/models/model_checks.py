"""Checks that each of a job's models suits its role: a language model, or a reward model with the right
scores.
"""

from collections.abc import Mapping
from pathlib import Path

from transformers import PretrainedConfig

from kubealign.spec.algorithms import ResultKind
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.training import HeadInit
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.model_folders import (
    is_reward_model,
    require_language_model,
    require_reward_model,
    require_scores,
    score_names,
)
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.scoring.attributes import UnknownAttribute, attribute_weights, check_same_scores


def check_model_kind(
    job: AlignmentJob, role: str, config: PretrainedConfig, folder: Path, place: str
) -> None:
    """Check the model of one role. Raises DataError.

    Args:
        place: Path of the model in the spec.
    """
    spec = job.spec
    if role.startswith("reward-"):
        require_reward_model(config, folder, place)
    elif role == "critic":
        if spec.critic is not None and spec.critic.head_init is HeadInit.REWARD_MODEL:
            require_reward_model(config, folder, place)
            require_scores(config, ["value"], folder, place)
    elif role == "policy" and spec.algorithm.value.makes is ResultKind.REWARD_MODEL:
        if is_reward_model(config):
            require_scores(config, spec.reward_score_names, folder, place)
    elif role != "policy" or spec.algorithm.value.trains or spec.algorithm.value.samples:
        # Without training or sampling only the policy's tokenizer is used, so any model will do.
        require_language_model(config, folder, place)


def check_reward_attributes(job: AlignmentJob, configs: Mapping[str, PretrainedConfig]) -> None:
    """Check that weighted attributes exist and that the models of an ensemble have the same scores.

    Args:
        configs: By role.

    Raises DataError.
    """
    for index, reward in enumerate(job.spec.rewards):
        scores = [score_names(configs[role]) for role in reward_roles(reward)]
        if not scores:
            continue
        try:
            check_same_scores(scores)
        except UnknownAttribute as error:
            raise DataError(f"spec.rewards[{index}].ensemble: {error}") from error
        try:
            attribute_weights(scores[0], reward.attributes)
        except UnknownAttribute as error:
            raise DataError(f"spec.rewards[{index}].attributes: {error}") from error
