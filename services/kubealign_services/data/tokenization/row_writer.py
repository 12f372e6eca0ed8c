"""Writing of tokenised rows as Parquet, block by block."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow
import pyarrow.parquet
from transformers import PreTrainedTokenizerBase

from kubealign.spec.algorithms import Hint
from kubealign.spec.sections.data import Data, OverlongPolicy
from kubealign.spec.workflows.tool_call_checks import TOOLS_NEED_CHAT
from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.prepared import DatasetReport
from kubealign_services.data.rows.example import Example
from kubealign_services.data.rows.field_mapping import (
    chat_template_kwargs,
    label_columns,
    prompt_column,
    read_example,
    token_columns,
)
from kubealign_services.data.rows.hints import add_hint
from kubealign_services.data.sources.file_rows import SourceRow
from kubealign_services.data.sources.row_dataset import RowDataset
from kubealign_services.data.tokenization.chat_template import check_template_variables
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer, TokenizedExample
from kubealign_services.data.tokenization.length_filter import TokenBudget, fit_prompt
from kubealign_services.data.tokenization.reward_text_bound import RewardTextBound
from kubealign_services.data.tokenization.step_labels import StepLabelPlacement
from kubealign_services.data.tokenization.token_rows import TokenRowReader
from kubealign_services.data.tokenization.tokenizers import prefix_ids

log = logging.getLogger(__name__)


_BLOCK_ROWS = 512


_TOKENS = pyarrow.list_(pyarrow.int32())


#: Columns of each kind of row besides its prompt: fields of PreparedRow.
_KIND_COLUMNS: dict[str, dict[str, pyarrow.DataType]] = {
    "prompts": {},
    "demonstrations": {"response_tokens": _TOKENS, "response_mask": pyarrow.list_(pyarrow.int8())},
    "preferences": {
        "chosen_tokens": _TOKENS,
        "rejected_tokens": _TOKENS,
        "chosen_rating": pyarrow.float64(),
        "rejected_rating": pyarrow.float64(),
    },
    "ratings": {
        "response_tokens": _TOKENS,
        "ratings": pyarrow.list_(pyarrow.float64()),
        "step_tokens": _TOKENS,
        "step_labels": pyarrow.list_(pyarrow.float64()),
    },
    "unpaired": {"response_tokens": _TOKENS, "label": pyarrow.bool_()},
}


#: Columns taken from the example itself.
_ANNOTATION_FIELDS = ("ratings", "label", "chosen_rating", "rejected_rating")


Item = TypeVar("Item")


@dataclass(frozen=True)
class HintedPrompts:
    """Prompts of a teacher, written with the rows.

    Args:
        max_tokens: Room for a hinted prompt; None: unbounded.
    """

    hint: Hint
    max_tokens: int | None


def write_rows(
    sources: Sequence[RowDataset],
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    room: TokenBudget,
    path: Path,
    spec_path: str,
    reward_bounds: Sequence[RewardTextBound] = (),
    group_by: str | None = None,
    hint: HintedPrompts | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
) -> DatasetReport:
    """Tokenise the sources, write the kept rows in this order and return the statistics.

    Of streamed data only the first rows are written, as many blocks as it takes to keep one.

    Args:
        sources: One, or the entries of a mixture.
        spec_path: Path of the data in the spec, for errors.
        reward_bounds: Bounds of the reward models that score text.
        group_by: Column that every row must have.
        hint: Prompts to write for the teacher.
        tools: JSON schemas of the job's tools, which the chat template writes into every prompt.

    Raises DataError for a row that cannot be used, when no row of a source is kept, and for tools or
    variables that the chat template does not read.
    """
    check_template_variables(tokenizer, _template_fields(data, f"{spec_path}.{data.member}.format.chat"))
    if tools is not None and data.value.format.chat is None:
        raise DataError(f"{spec_path}.{data.member}.format: {TOOLS_NEED_CHAT}")
    encoder = RowEncoder(data, tokenizer, room, group_by, reward_bounds, hint, tools)
    counts: dict[str, int] = {}
    with pyarrow.parquet.ParquetWriter(path, _schema(data.member, has_hints=hint is not None)) as file:
        for source in sources:
            counts[source.entry] = _write_source(
                source, encoder, file, spec_path, is_streamed=data.value.streaming is not None
            )
    names = ", ".join(source.name for source in sources)
    report = encoder.report(names, counts if data.value.mixture is not None else {})
    message = "the first rows are checked; all rows are streamed" if report.streaming else "rows are prepared"
    log.info(message, extra=report.model_dump())
    if encoder.open_responses:
        log.warning(
            "%s: %d of %d rows have a response that no end-of-sequence token ends, and the policy learns to "
            "go on after them: token ids are used as they are",
            spec_path,
            encoder.open_responses,
            report.rows_kept,
        )
    return report


def _write_source(
    source: RowDataset,
    encoder: "RowEncoder",
    file: pyarrow.parquet.ParquetWriter,
    spec_path: str,
    *,
    is_streamed: bool,
) -> int:
    """Write the kept rows of a source and return their number. Raises DataError when there is none."""
    read_before, kept_before = encoder.rows_read, encoder.rows_kept
    with source.located_errors():
        for block in _blocks(enumerate(source), _BLOCK_ROWS):
            file.write_batch(pyarrow.RecordBatch.from_pylist(encoder.encode(block), schema=file.schema))
            if is_streamed and encoder.rows_kept > kept_before:
                break
    rows_kept = encoder.rows_kept - kept_before
    if rows_kept == 0:
        room = encoder.room
        raise DataError(
            f"{spec_path}: nothing is left of {source.name}: all {encoder.rows_read - read_before} rows were "
            f"dropped, because they have more tokens than there is room for ({room.prompt or 'any number'} "
            f"in a prompt, {room.sequence or 'any number'} with its response{encoder.reward_contexts}"
            + encoder.describe_dropped_hints()
            + ")"
        )
    return rows_kept


def _template_fields(data: Data, spec_path: str) -> dict[str, str]:
    """Return variable of the chat template -> path of the field that sets it."""
    chat = data.value.format.chat
    if chat is None:
        return {}
    tools = {} if chat.tools is None else {"tools": f"{spec_path}.tools"}
    return tools | {name: f"{spec_path}.chatTemplateKwargs.{name}" for name in chat.chat_template_kwargs}


def _schema(kind: str, *, has_hints: bool) -> pyarrow.Schema:
    columns: dict[str, pyarrow.DataType] = {
        "row": pyarrow.int64(),
        "prompt_tokens": _TOKENS,
        "prompt_text": pyarrow.string(),
        "columns": pyarrow.string(),
    }
    if has_hints:
        columns["teacher_prompt_tokens"] = _TOKENS
    return pyarrow.schema(list((columns | _KIND_COLUMNS[kind]).items()))


def _blocks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while block := list(islice(items, size)):
        yield block


class RowEncoder:
    """Converts the rows of all sources to records and collects statistics.

    rows_read, rows_kept: so far. open_responses: kept rows with a response that no token ends, which only
    rows of token ids can have.
    """

    def __init__(
        self,
        data: Data,
        tokenizer: PreTrainedTokenizerBase,
        room: TokenBudget,
        group_by: str | None,
        reward_bounds: Sequence[RewardTextBound],
        hint: HintedPrompts | None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._reward_bounds = reward_bounds
        self._kind, self._data, self.room = data.member, data.value, room
        self._group_by, self._hint = group_by, hint
        self._tools = None if tools is None else list(tools)
        self._dropped_hints = self._teacher_prompt = 0
        self._renderer = ExampleTokenizer(tokenizer, chat_template_kwargs(data.value))
        self._token_rows = TokenRowReader(tokenizer, data.value)
        steps = label_columns(data.value)
        self._steps = None if steps is None else StepLabelPlacement(steps, tokenizer, self._renderer)
        self._beginning = prefix_ids(tokenizer)
        self._unknown_id = tokenizer.unk_token_id
        # A prompt from a template differs from its column.
        prompt = None if data.value.template else prompt_column(data.value)
        self._omitted_columns = {prompt, *token_columns(data.value)}
        self.rows_read = self.rows_kept = self._dropped = self._truncated = self._unknown = 0
        self._prompt = self._response = self._sequence = self._context = 0
        self._left_out: set[str] = set()
        self.open_responses = 0

    def encode(self, rows: Sequence[tuple[int, SourceRow]]) -> list[dict[str, Any]]:
        """Return the records of the rows that are kept."""
        self.rows_read += len(rows)
        if self._data.format.tokens is not None:
            rendered = self._token_rows.read(rows)
        else:
            rendered = self._renderer.tokenize(
                [read_example(self._data, row, number, self._tools) for number, row in rows]
            )
        problems = self._reward_problems([item.example for item in rendered])
        teacher_prompts = self._teacher_prompts(rendered, rows)
        records = [
            self._record(item, row, problem, teacher_prompt)
            for item, (_, row), problem, teacher_prompt in zip(
                rendered, rows, problems, teacher_prompts, strict=True
            )
        ]
        return [record for record in records if record is not None]

    @property
    def reward_contexts(self) -> str:
        """Contexts of the reward models that score text, as the end of an error's list."""
        bounds = [bound for bound in self._reward_bounds if bound.context is not None]
        return "".join(f", {bound.context} tokens of {bound.name}" for bound in bounds)

    def _reward_problems(self, examples: Sequence[Example]) -> list[str | None]:
        """Return for each example why a reward model that scores text cannot read it; None: all can."""
        problems: list[str | None] = [None] * len(examples)
        for bound in self._reward_bounds:
            problems = [a or b for a, b in zip(problems, bound.check(examples), strict=True)]
        return problems

    def _teacher_prompts(
        self, rendered: Sequence[TokenizedExample], rows: Sequence[tuple[int, SourceRow]]
    ) -> list[list[int] | None]:
        """Return the tokens of each row's hinted prompt; None without a hint."""
        if self._hint is None:
            return [None] * len(rendered)
        hinted = [
            add_hint(item.example, self._hint.hint, self._data, row)
            for item, (_, row) in zip(rendered, rows, strict=True)
        ]
        return [item.prompt_tokens for item in self._renderer.tokenize(hinted)]

    def _fits_hint(self, prompt: Sequence[int] | None, number: int) -> bool:
        """Return True if the hinted prompt leaves room for a response. A longer one is never truncated: the
        teacher would judge the response to another prompt. Raises RowError with overlong Fail.
        """
        room = None if self._hint is None else self._hint.max_tokens
        if prompt is None or room is None or len(prompt) <= room:
            return True
        if self._data.overlong is OverlongPolicy.FAIL:
            raise RowError(
                number,
                f" is too long: a prompt of {len(prompt)} tokens with its hint; there is room for {room} "
                "(overlong: Drop or Truncate drops the row)",
            )
        return False

    def _record(
        self, item: TokenizedExample, row: SourceRow, problem: str | None, teacher_prompt: list[int] | None
    ) -> dict[str, Any] | None:
        """Return the record of a row; None: the row is dropped.

        Args:
            problem: Reason why a reward model cannot read the row, if any. Its text is never truncated.
        """
        if problem is not None:
            if self._data.overlong is OverlongPolicy.FAIL:
                raise RowError(
                    item.example.number, f" is too long: {problem} (overlong: Drop or Truncate drops it)"
                )
            self._dropped += 1
            return None
        response = max((len(tokens) for tokens in item.responses.values()), default=0)
        prompt = fit_prompt(
            item.prompt_tokens,
            response,
            self.room,
            self._data.overlong,
            self._beginning_length(item.prompt_tokens),
            item.example.number,
        )
        if prompt is None:
            self._dropped += 1
            return None
        if not self._fits_hint(teacher_prompt, item.example.number):
            self._dropped += 1
            self._dropped_hints += 1
            return None
        columns, left_out = columns_to_json(
            {name: value for name, value in row.items() if name not in self._omitted_columns}
        )
        self._left_out.update(left_out)
        if self._group_by is not None and (self._group_by not in row or self._group_by in left_out):
            raise RowError(item.example.number, f" has no column {self._group_by!r} to group by")
        self.rows_kept += 1
        self.open_responses += not all(
            self._renderer.is_end(tokens[-1]) for tokens in item.responses.values()
        )
        self._truncated += len(prompt) < len(item.prompt_tokens)
        self._count_tokens(prompt, response, item)
        self._teacher_prompt = max(self._teacher_prompt, len(teacher_prompt or ()))
        self._context = max(self._context, len(columns.encode()) + len(item.prompt_text.encode()))
        record: dict[str, Any] = {
            "row": item.example.number,
            "prompt_tokens": prompt,
            "prompt_text": item.prompt_text,
            "columns": columns,
        }
        if teacher_prompt is not None:
            record["teacher_prompt_tokens"] = teacher_prompt
        kind_values: dict[str, Any] = {f"{name}_tokens": tokens for name, tokens in item.responses.items()}
        kind_values |= {name: getattr(item.example, name) for name in _ANNOTATION_FIELDS}
        kind_values["response_mask"] = item.response_mask
        if self._steps is not None:
            kind_values |= self._steps.columns(item)
        return record | {name: kind_values.get(name) for name in _KIND_COLUMNS[self._kind]}

    def _beginning_length(self, prompt: Sequence[int]) -> int:
        """Return the number of tokens at the start of a prompt that a truncation keeps."""
        count = len(self._beginning)
        # Given ids may begin otherwise than the tokenizer begins a text.
        return count if self._data.format.tokens is None or prompt[:count] == self._beginning else 0

    def _count_tokens(self, prompt: list[int], response: int, item: TokenizedExample) -> None:
        self._prompt = max(self._prompt, len(prompt))
        self._response = max(self._response, response)
        self._sequence = max(self._sequence, len(prompt) + response)
        if self._unknown_id is not None:
            self._unknown += sum(
                tokens.count(self._unknown_id) for tokens in [prompt, *item.responses.values()]
            )

    def report(self, source: str, rows_by_entry: dict[str, int]) -> DatasetReport:
        """Return the statistics of all rows.

        Args:
            source: Names of the sources.
            rows_by_entry: Rows kept of each entry of a mixture.
        """
        return DatasetReport(
            kind=self._kind,
            source=source,
            rows_read=self.rows_read,
            rows_kept=self.rows_kept,
            dropped=self._dropped,
            truncated=self._truncated,
            unknown_tokens=self._unknown,
            longest_prompt=self._prompt,
            longest_response=self._response,
            longest_sequence=self._sequence,
            longest_context_bytes=self._context,
            columns_left_out=sorted(self._left_out),
            sources=rows_by_entry,
            dropped_hints=self._dropped_hints,
            longest_teacher_prompt=self._teacher_prompt,
            streaming=self._data.streaming is not None,
        )

    def describe_dropped_hints(self) -> str:
        """Return the part of an error about rows that were dropped for their hinted prompts."""
        if self._hint is None or not self._dropped_hints:
            return ""
        return f", {self._hint.max_tokens} in a prompt with its hint: {self._dropped_hints} rows have more"


def columns_to_json(columns: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Encode columns as a JSON object.

    Returns (JSON object, names of columns left out because JSON cannot represent them, such as images and
    bytes). Dates and times become ISO 8601 text; NaN and infinities, which JSON lacks, become null.
    """
    encoded: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in columns.items():
        try:
            encoded[name] = json.dumps(_json_value(value), ensure_ascii=False, allow_nan=False)
        except TypeError:
            left_out.append(name)
    body = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in encoded.items())
    return "{" + body + "}", left_out


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    return value
