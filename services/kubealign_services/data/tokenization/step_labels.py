"""Placement of the labels of steps at the tokens with which the steps end."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.sections.data import StepLabels
from kubealign_services.data.errors import RowError
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer, TokenizedExample
from kubealign_services.data.tokenization.tokenizers import decode_ids
from kubealign_services.scoring.response_steps import find_last_tokens, split_steps


@dataclass(frozen=True)
class StepLabelPlacement:
    """Divides responses into steps as scoring does: by the text of their tokens, without the one that ends
    them.
    """

    layout: StepLabels
    tokenizer: PreTrainedTokenizerBase
    examples: ExampleTokenizer

    def columns(self, item: TokenizedExample) -> dict[str, Any]:
        """Return `step_tokens`, the index in the response of each step's last token, and `step_labels`.

        Raises RowError where the number of labels is not that of the steps.
        """
        (tokens,) = item.responses.values()
        labels = item.example.step_labels
        assert labels is not None
        decode = partial(decode_ids, self.tokenizer)
        response = decode(tokens[:-1] if self.examples.is_end(tokens[-1]) else tokens)
        steps = split_steps(response, self.layout.separator)
        if len(steps) != len(labels):
            raise RowError(
                item.example.number,
                f": {self.layout.labels!r} has {len(labels)} labels, and the separator "
                f"{self.layout.separator!r} divides the response into {len(steps)} steps: give each step one",
            )
        return {"step_tokens": find_last_tokens(steps, response, tokens, decode), "step_labels": labels}
