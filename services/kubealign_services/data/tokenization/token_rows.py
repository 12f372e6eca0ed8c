"""Rows of token ids: checked against the tokenizer's vocabulary and cut into prompt and responses.

The ids are used as they are: no beginning, no end of sequence and no chat template is added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.sections.data import DemonstrationTokens, TrainedTokens
from kubealign_services.data.rows.example import Example
from kubealign_services.data.rows.field_mapping import DataSet, read_annotations, response_columns
from kubealign_services.data.rows.row_reader import RowReader
from kubealign_services.data.tokenization.example_tokenizer import TokenizedExample
from kubealign_services.data.tokenization.tokenizers import decode_ids

#: Label of a token that is not trained on (the ignore_index of torch's cross_entropy).
IGNORED_LABEL = -100


@dataclass(frozen=True)
class TokenRowReader:
    """Reads rows of token ids as tokenised examples."""

    tokenizer: PreTrainedTokenizerBase
    data: DataSet

    def read(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> list[TokenizedExample]:
        """Return the examples of (number, row) pairs.

        The text of a prompt is its decoded ids, special tokens included. Raises RowError for ids that the
        tokenizer does not have, an empty prompt or response, and a mask that does not fit the ids.
        """
        return [self._read(number, row) for number, row in rows]

    def _read(self, number: int, row: Mapping[str, Any]) -> TokenizedExample:
        cells, layout = RowReader(row, number), self.data.format.value
        mask = None
        if isinstance(layout, DemonstrationTokens):
            ids = cells.token_ids(layout.sequence, self._vocabulary)
            prompt, response, mask = split_sequence(ids, read_mask(layout, ids, cells))
            responses = {"response": response}
        else:
            prompt = cells.token_ids(layout.prompt, self._vocabulary)
            responses = {
                name: cells.token_ids(column, self._vocabulary)
                for name, column in response_columns(layout).items()
            }
        text = decode_ids(self.tokenizer, prompt)
        example = Example(number, text, **read_annotations(self.data, cells))
        return TokenizedExample(example, text, prompt, responses, mask)

    @cached_property
    def _vocabulary(self) -> frozenset[int]:
        return frozenset(self.tokenizer.get_vocab().values())


def read_mask(layout: DemonstrationTokens, ids: Sequence[int], cells: RowReader) -> list[int]:
    """Return 1 for each id that is trained on, else 0.

    The first token is never trained on: no token precedes it that it could be predicted from. Raises RowError
    where no token is trained on.
    """
    column = str(layout.trained.value)
    mask = _read_trained(layout.trained, layout.sequence, ids, cells)
    if 1 not in mask[1:]:
        raise cells.error(column, "no token is trained on (the first one cannot be): remove the row")
    return [0, *mask[1:]]


def _read_trained(trained: TrainedTokens, sequence: str, ids: Sequence[int], cells: RowReader) -> list[int]:
    if trained.mask is not None:
        return cells.bits(trained.mask, len(ids), sequence)
    if trained.labels is not None:
        labels = cells.integers(trained.labels, len(ids), sequence)
        for position, (label, token) in enumerate(zip(labels, ids, strict=True)):
            if label not in (IGNORED_LABEL, token):
                raise cells.error(
                    trained.labels,
                    f"item {position + 1} is {label}, neither {IGNORED_LABEL} nor the id {token} of "
                    f"{sequence!r} at that position: labels must not be shifted",
                )
        return [int(label != IGNORED_LABEL) for label in labels]
    assert trained.prompt_length is not None
    length = cells.length(trained.prompt_length, len(ids) - 1, sequence)
    return [0] * length + [1] * (len(ids) - length)


def split_sequence(ids: Sequence[int], mask: Sequence[int]) -> tuple[list[int], list[int], list[int] | None]:
    """Split a sequence at its first trained token. Pure.

    Tokens after the last trained one are left off: with causal attention they change no trained token.

    Args:
        ids: [T].
        mask: [T], 0 at the first token, 1 at one token at least.

    Returns (prompt, response, mask of the response; None where all of the response is trained on).
    """
    start = mask.index(1)
    end = len(mask) - list(reversed(mask)).index(1)
    response_mask = list(mask[start:end])
    return list(ids[:start]), list(ids[start:end]), response_mask if 0 in response_mask else None
