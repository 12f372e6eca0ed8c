"""Reward models whose vocabulary is not the policy's: they score text instead of the policy's tokens."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kubealign.spec.algorithms import AnnotateSpec
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.rewards import RewardPlacement
from kubealign_services.data.errors import DataError
from kubealign_services.data.models.context_length import context_length
from kubealign_services.data.models.model_folders import load_model_config
from kubealign_services.data.models.reward_roles import reward_of_role
from kubealign_services.data.rows.field_mapping import chat_template_kwargs
from kubealign_services.data.tokenization.reward_text import (
    RewardTextFormat,
    RewardTextTokenizer,
    SpecialTokenFilter,
)
from kubealign_services.data.tokenization.reward_text_bound import RewardTextBound
from kubealign_services.data.tokenization.tokenizers import load_tokenizer
from kubealign_services.training.files.hf_heads import read_pooling

#: Remedy for a process reward model of another vocabulary.
STEPS_NEED_TOKENS = "use a model with the policy's tokenizer, or remove steps"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextReward:
    """A reward model that scores text. context: its longest sequence in tokens; None: unbounded."""

    tokenizer: PreTrainedTokenizerBase
    text_format: RewardTextFormat
    context: int | None

    @classmethod
    def load(cls, folder: Path, name: str) -> "TextReward":
        """Load the tokenizer and the config of a folder.

        Args:
            name: Path in the spec, or role, for errors.

        Raises DataError.
        """
        return cls.of_config(load_tokenizer(folder, name), load_model_config(folder, name))

    @classmethod
    def of_config(cls, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> "TextReward":
        """Return the reward model of a tokenizer and a config."""
        padding = getattr(config.get_text_config(), "pad_token_id", None)
        is_native = read_pooling(config) is not None
        return cls(tokenizer, RewardTextFormat(is_native, padding), context_length(config))

    def tokenizer_for(self, data: Data) -> RewardTextTokenizer:
        """Return the tokenizer of the rows of a data set."""
        return RewardTextTokenizer(self.tokenizer, self.text_format, chat_template_kwargs(data.value))


def check_text_reward(job: AlignmentJob, role: str, spec_path: str) -> None:
    """Raise DataError where a reward model of another vocabulary cannot be used.

    Args:
        role: Role of the model, one of `reward_roles`.
        spec_path: Path of the model in the spec, for errors.
    """
    reward = reward_of_role(job.spec.rewards, role)
    problem = f"{spec_path}: its tokenizer is not the policy's, so it scores the response's text"
    if reward.placement is RewardPlacement.WITH_CRITIC:
        raise DataError(f"{problem}; with placement {reward.placement} it gets tokens: set placement to Own")
    if reward.steps is not None:
        raise DataError(f"{problem}; the steps are those of the policy's tokens: {STEPS_NEED_TOKENS}")
    rollout = job.spec.effective_rollout
    if rollout is not None and rollout.workflow is not None:
        raise DataError(
            f"{problem}; the turns of spec.rollout.workflow are known as the policy's tokens only: use a "
            "reward model with the policy's tokenizer, or remove the workflow"
        )


def log_text_reward(role: str, spec_path: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Log that a reward model scores text."""
    log.info(
        "%s: its tokenizer is not the policy's; it scores the text of prompt and response, rendered and "
        "tokenised with its own",
        spec_path,
        extra={"reward_model": role, "has_chat_template": bool(tokenizer.chat_template)},
    )
    if "strftime_now" in str(tokenizer.chat_template):
        log.warning(
            "%s: its chat template writes the current date, so its scores change with the day: set the date "
            "in format.chat.chatTemplateKwargs, or give the tokenizer another template",
            spec_path,
        )


def text_bounds(
    job: AlignmentJob,
    data: Data,
    rewards: Mapping[str, TextReward],
    policy_tokenizer: PreTrainedTokenizerBase,
) -> list[RewardTextBound]:
    """Return the bounds that the reward models that score text set on the rows of a data set.

    Args:
        rewards: Role -> these models.
    """
    return [
        RewardTextBound(
            role,
            reward.tokenizer_for(data),
            reward.context,
            scores_given_responses(job),
            prompt_filter(data, policy_tokenizer),
        )
        for role, reward in rewards.items()
    ]


def prompt_filter(data: Data, policy_tokenizer: PreTrainedTokenizerBase) -> SpecialTokenFilter:
    """Return the filter of text prompts: decoded prompts of token ids have the policy's special tokens."""
    return SpecialTokenFilter([policy_tokenizer] if data.value.format.tokens is not None else [])


def scores_given_responses(job: AlignmentJob) -> bool:
    """Return True when the rewards score the responses of the rows instead of sampled ones."""
    return isinstance(job.spec.algorithm.value, AnnotateSpec)
