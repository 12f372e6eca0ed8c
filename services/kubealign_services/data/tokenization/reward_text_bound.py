"""Bound on rows by the context of a reward model with a vocabulary of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign_services.data.errors import RowError
from kubealign_services.data.rows.example import Example
from kubealign_services.data.tokenization.reward_text import (
    RewardTextTokenizer,
    SpecialTokenFilter,
    scored_example,
)


@dataclass(frozen=True)
class RewardTextBound:
    """Longest sequence of a reward model, in its own tokens.

    name: role of the model. context: tokens; None: unbounded. has_responses: the model scores the responses
    of the rows; otherwise sampled ones, which need room for one token at least. prompt_filter: filter of
    text prompts.
    """

    name: str
    tokenizer: RewardTextTokenizer
    context: int | None
    has_responses: bool
    prompt_filter: SpecialTokenFilter

    def check(self, examples: Sequence[Example]) -> list[str | None]:
        """Return for each example the reason why the model cannot read it; None: it can.

        Raises RowError where the model's chat template rejects the messages.
        """
        scored = (
            examples
            if self.has_responses
            else [scored_example(example, "", self.prompt_filter) for example in examples]
        )
        try:
            lengths = [len(item.tokens) for item in self.tokenizer.tokenize(scored)]
        except RowError as error:
            raise RowError(error.row, f" cannot be scored by {self.name}{error.problem}") from error
        return [self._problem(length) for length in lengths]

    def _problem(self, length: int) -> str | None:
        room = 0 if self.has_responses else 1
        if self.context is None or length + room <= self.context:
            return None
        content = "prompt and response are" if self.has_responses else "the prompt is"
        return f"{content} {length} tokens of {self.name}, whose context is {self.context}"
