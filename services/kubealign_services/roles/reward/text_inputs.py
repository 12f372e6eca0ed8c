"""Text inputs of a reward model whose vocabulary is not the policy's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.data import Data
from kubealign.v1 import rollout_pb2
from kubealign_services.data.errors import RowError
from kubealign_services.data.models.text_rewards import TextReward, prompt_filter, scores_given_responses
from kubealign_services.data.rows.example import Example
from kubealign_services.data.rows.field_mapping import read_example
from kubealign_services.data.tokenization.reward_text import (
    RewardTextTokenizer,
    ScoredTokens,
    SpecialTokenFilter,
    scored_example,
)
from kubealign_services.scoring.purposes import TRAINING, validation_purpose
from kubealign_services.scoring.row_context import read_row_context


class UnreadableSample(ValueError):
    """The reward model cannot read a sample: its text is too long, or rejected by the template, or its steps
    are not found in its tokens.
    """


@dataclass(frozen=True)
class _RowReader:
    """Reader of the rows of one data set. prompt_filter: filter of text prompts."""

    data: Data
    tokenizer: RewardTextTokenizer
    prompt_filter: SpecialTokenFilter


class TextInputs:
    """Renders and tokenises the text of rollouts for one reward model.

    Args:
        reward: Tokenizer and context of the model.
        policy_tokenizer: Its special tokens are removed from responses.
    """

    def __init__(
        self, job: AlignmentJob, reward: TextReward, policy_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        spec = job.spec
        held_out = {validation_purpose(rows.name): rows.data for rows in spec.held_out_rows}
        data_sets = {TRAINING: spec.data, **held_out}
        self._readers: Mapping[str, _RowReader] = {
            purpose: _RowReader(data, reward.tokenizer_for(data), prompt_filter(data, policy_tokenizer))
            for purpose, data in data_sets.items()
        }
        self._context = reward.context
        self._given = scores_given_responses(job)
        self._response_filter = SpecialTokenFilter([policy_tokenizer, reward.tokenizer])

    @classmethod
    def load(
        cls, job: AlignmentJob, folder: Path, role: str, policy_tokenizer: PreTrainedTokenizerBase
    ) -> "TextInputs":
        """Load the tokenizer of the reward model in a folder. Raises DataError."""
        return cls(job, TextReward.load(folder, role), policy_tokenizer)

    def tokenize(self, rollout: rollout_pb2.Rollout) -> ScoredTokens:
        """Return the ids of a rollout's prompt and response.

        Raises:
            UnreadableSample: The model cannot read the text.
            InvalidRequest: The rollout has no row.
        """
        reader = self._readers.get(rollout.purpose, self._readers[TRAINING])
        try:
            (scored,) = reader.tokenizer.tokenize([self._example(rollout, reader)])
        except RowError as error:
            raise UnreadableSample(f"sample {_sample_name(rollout)}{error.problem}") from error
        if self._context is not None and len(scored.tokens) > self._context:
            raise UnreadableSample(
                f"sample {_sample_name(rollout)} has {len(scored.tokens)} tokens of the reward model's "
                f"tokenizer, and the model's context is {self._context}: lower maxTokens of the prompts or "
                "of the sampling, or use a reward model with a longer context"
            )
        return scored

    def _example(self, rollout: rollout_pb2.Rollout, reader: _RowReader) -> Example:
        context = read_row_context(rollout)
        if reader.data.value.format.chat is None:
            example = Example(0, context["prompt"])
            response = rollout.response if self._given else self._response_filter(rollout.response)
            return scored_example(example, response, reader.prompt_filter)
        example = read_example(reader.data.value, context["columns"], 0)
        if self._given:
            return example
        return scored_example(example, self._response_filter(rollout.response), reader.prompt_filter)


def _sample_name(rollout: rollout_pb2.Rollout) -> str:
    return f"{rollout.group_id}#{rollout.sample}"
