"""Result of a job's preparation in the run directory: models by role, tokenised rows, and a report.

prepared/models.json: role -> folder (relative to prepared/ where it was built there).
prepared/train.parquet, validation.parquet, validation-SET.parquet: the rows. prepared/report.json: counts.
prepared/inputs.json: the part of the spec that the preparation depends on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import pyarrow
import pyarrow.parquet
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedTokenizerBase

from kubealign.spec.job import AlignmentJobSpec
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared_files import (
    FOLDER,
    INPUTS,
    MODELS,
    REPORT,
    TRAIN,
    VALIDATION,
    validation_file,
)
from kubealign_services.data.tokenization.tokenizers import load_tokenizer

__all__ = ["FOLDER", "INPUTS", "MODELS", "REPORT", "TRAIN", "VALIDATION"]


class DatasetReport(BaseModel):
    """Statistics of one prepared dataset. Lengths in tokens, end-of-sequence included.

    streaming: the rows are streamed while the job trains, and their total is not known; the statistics are
    those of the first rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: prompts, demonstrations, preferences, ratings or unpaired.
    kind: str
    source: str
    rows_read: int
    rows_kept: int
    #: Rows dropped for their length, and rows with a truncated prompt.
    dropped: int
    truncated: int
    #: Unknown tokens in prompts and responses.
    unknown_tokens: int
    longest_prompt: int
    #: 0 for rows that are prompts only.
    longest_response: int
    longest_sequence: int
    #: Maximum bytes of prompt text and columns of a row: the payload of a work item besides the tokens.
    longest_context_bytes: int
    #: Columns that JSON cannot represent, which the rewards do not get.
    columns_left_out: list[str]
    #: Rows kept of each source of a mixture, in its order; empty without a mixture.
    sources: dict[str, int] = {}
    #: Rows among the dropped ones whose prompt fits and whose hinted prompt does not, and the longest of the
    #: kept rows' hinted prompts; 0 without a hint.
    dropped_hints: int = 0
    longest_teacher_prompt: int = 0
    streaming: bool = False


class PreparationReport(BaseModel):
    """Report of a preparation. context: maximum sequence length of all the job's models that read the
    policy's tokens; None: unbounded. text_rewards: roles of the reward models that score text instead.
    validation_sets: reports of the validation sets by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    context: int | None
    train: DatasetReport
    validation: DatasetReport | None
    text_rewards: list[str] = []
    validation_sets: dict[str, DatasetReport] = {}

    @property
    def parts(self) -> list[DatasetReport]:
        """Reports of all data sets."""
        own = [] if self.validation is None else [self.validation]
        return [self.train, *own, *self.validation_sets.values()]

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt of all data sets."""
        return max(part.longest_prompt for part in self.parts)


@dataclass(frozen=True)
class PreparedRow:
    """One row.

    `row` is its number in its source, from 0; `columns` are its columns without a text prompt's own (which
    a prompt from a template keeps) and without lists of token ids and masks.

    Responses end with the token at which sampling ends, unless the rows are token ids. response_mask: where
    several turns of a conversation are imitated, the response is everything after the first prompt, with 1
    at the tokens of imitated turns; else None. ratings: None within the list for an unknown rating.
    step_tokens: index in the response of the last token of each step, and step_labels: the steps' labels,
    None for an unknown one; rows with labels of steps have no ratings. Fields that
    the kind of row does not have are None. teacher_prompt_tokens: the prompt that the teacher reads, with its
    hint; None without a hint.
    """

    row: int
    prompt_tokens: list[int]
    prompt_text: str
    columns: dict[str, Any] = field(default_factory=dict)
    response_tokens: list[int] | None = None
    chosen_tokens: list[int] | None = None
    rejected_tokens: list[int] | None = None
    response_mask: list[int] | None = None
    ratings: list[float | None] | None = None
    step_tokens: list[int] | None = None
    step_labels: list[float | None] | None = None
    label: bool | None = None
    chosen_rating: float | None = None
    rejected_rating: float | None = None
    teacher_prompt_tokens: list[int] | None = None


def row_index(name: str) -> int:
    """Return the index of the row of a prompt, PASS/ROW, or of one of its samples, PASS/ROW#SAMPLE."""
    return int(name.partition("#")[0].rpartition("/")[2])


class PreparedRows(Sequence[PreparedRow]):
    """The kept rows, by index from 0. Read on first access."""

    def __init__(self, path: Path, kind: str) -> None:
        self.kind = kind
        self._path = path

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> PreparedRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PreparedRow]: ...

    def __getitem__(self, index: int | slice) -> PreparedRow | Sequence[PreparedRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        table = self._table
        # Avoids to_numpy, which imports pandas.
        values = {name: table.column(name)[index].as_py() for name in table.column_names}
        return PreparedRow(**values | {"columns": json.loads(values["columns"])})

    def __iter__(self) -> Iterator[PreparedRow]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def _count(self) -> int:
        return int(pyarrow.parquet.read_metadata(self._path).num_rows)

    @cached_property
    def _table(self) -> pyarrow.Table:
        # Avoids read_table, which imports all of pyarrow.dataset.
        return pyarrow.parquet.ParquetFile(self._path).read()


@dataclass(frozen=True)
class PreparedJob:
    """A prepared job. Weights, tokenizer and rows are loaded on first access."""

    folder: Path
    #: policy, and where the job has them reference, teacher, teacher-NAME, critic, reward-NAME,
    #: checkpoint-STEP -> Hugging Face folder.
    models: dict[str, Path]
    report: PreparationReport
    train: PreparedRows
    validation: PreparedRows | None
    #: Rows of the validation sets by name.
    validation_sets: dict[str, PreparedRows] = field(default_factory=dict)

    def held_out(self, set_name: str | None) -> PreparedRows | None:
        """Return the rows of a validation set (None: those of validation.data); None: there are none."""
        return self.validation if set_name is None else self.validation_sets.get(set_name)

    def total_steps(self, spec: AlignmentJobSpec) -> int:
        """Return the number of steps of the job, over which its schedules extend."""
        return spec.total_steps(self.report.train.rows_kept)

    def model_folder(self, role: str) -> Path:
        """Return the Hugging Face folder of a role.

        Raises DataError where the job has no such model, or it is missing.
        """
        if role not in self.models:
            raise DataError(f"the job has no model for {role}; it has {', '.join(sorted(self.models))}")
        folder = self.models[role]
        if not folder.is_dir():
            # Only the preparation downloads; a model of the hub is in the cache that a volume's jobs share.
            raise DataError(
                f"{_model_field(role)}: the model of {role} is missing: {folder} existed when the job was "
                "prepared. Put it back, or start the job under another name"
            )
        return folder

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer, which all models of the job share but those of report.text_rewards."""
        return load_tokenizer(self.model_folder("policy"), "spec.policy.model")


def _model_field(role: str) -> str:
    """Return the field of the spec that names the model of a role, or the list with its entry."""
    section, hyphen, _ = role.partition("-")
    if section == "checkpoint":
        return "spec.algorithm.evaluate.checkpoints"
    return f"spec.{section}s" if hyphen else f"spec.{role}.model"


def load_prepared(run_dir: Path) -> PreparedJob:
    """Load the result of `prepare`.

    Raises DataError where the job is not prepared, or its files cannot be read.
    """
    folder = run_dir / FOLDER
    if folder.is_symlink():
        # A replay or an export names the models by the folder of the run that it reads.
        folder = folder.readlink()
    if not folder.is_dir():
        raise DataError(f"the job is not prepared: there is no {folder}")
    try:
        report = PreparationReport.model_validate_json((folder / REPORT).read_text())
        models = json.loads((folder / MODELS).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read: {error}; delete it to prepare the job again") from error
    return PreparedJob(
        folder=folder,
        models={role: folder / path for role, path in models.items()},
        report=report,
        train=PreparedRows(folder / TRAIN, report.train.kind),
        validation=None
        if report.validation is None
        else PreparedRows(folder / VALIDATION, report.validation.kind),
        validation_sets={
            name: PreparedRows(folder / validation_file(name), part.kind)
            for name, part in report.validation_sets.items()
        },
    )
