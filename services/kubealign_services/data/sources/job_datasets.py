"""Datasets of a job, opened and with their columns checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubealign.spec.algorithms import Algorithm, Hint
from kubealign.spec.base import field_alias
from kubealign.spec.held_out_rows import HeldOutRows
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.paths import format_path
from kubealign.spec.sections.data import SOURCE_COLUMN, Data
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.score_calls import ScoreCalls
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.field_mapping import (
    DataSet,
    message_columns,
    prompt_column,
    read_example,
    referenced_columns,
    token_columns,
)
from kubealign_services.data.rows.hints import add_hint
from kubealign_services.data.rows.messages import with_system_message
from kubealign_services.data.rows.templates import check_template_columns
from kubealign_services.data.sources.row_dataset import RowDataset, open_source, require_columns
from kubealign_services.data.tokenization.example_tokenizer import training_texts


@dataclass(frozen=True)
class JobDatasets:
    """Training rows: one data set, or one for each entry of a mixture; and held-out rows.

    Args:
        held_out: Name of a validation set, None for the rows of validation.data -> rows.
        hint: Hint in the teacher's prompts of the training rows; None: the job has none.
    """

    train: Sequence[RowDataset]
    held_out: Mapping[str | None, Sequence[RowDataset]]
    spec: Data
    hint: Hint | None = None

    def texts(self) -> Iterator[str]:
        """Yield all training texts, as a tokenizer is trained on them.

        Raises DataError where the rows are token ids, or streamed.
        """
        if self.spec.value.streaming is not None:
            raise DataError(
                f"spec.data.{self.spec.member}.streaming: a tokenizer would be trained on all rows before "
                "the first step: name a tokenizer in config.tokenizer.path of the model, or remove streaming"
            )
        if self.spec.value.format.tokens is not None:
            raise DataError(
                f"spec.data.{self.spec.member}.format.tokens: token ids have no text that a tokenizer could "
                "be trained on: name the tokenizer that made the ids in config.tokenizer.path of the model"
            )
        for rows in self.train:
            with rows.located_errors():
                for number, row in enumerate(rows):
                    example = read_example(self.spec.value, row, number)
                    yield from training_texts(example)
                    if self.hint is not None:
                        yield from training_texts(add_hint(example, self.hint, self.spec.value, row))


def open_datasets(job: AlignmentJob, cache: Path, results: Mapping[str, Path]) -> JobDatasets:
    """Open the job's datasets.

    Args:
        results: Name of a job whose rows are read -> folder of its result.

    Raises DataError where a source is missing or empty, or lacks a named column.
    """
    spec = job.spec
    if spec.algorithm.evaluate is not None:
        held_out = _open_all_held_out(spec, cache, results)
        # The rewards that score the held-out rows, which its data are, may be some of the job's.
        return JobDatasets(held_out[spec.held_out_rows[0].name], held_out, spec.data)
    train = _open_dataset(spec.data, f"spec.data.{spec.data.member}", cache, results)
    hint = spec.hint
    if hint is not None:
        for rows in train:
            path = f"spec.algorithm.{field_alias(Algorithm, spec.algorithm.member)}.hint.template"
            check_template_columns(hint.template, rows.columns, path)
    _check_reward_columns({f"spec.rewards[{i}]": reward for i, reward in enumerate(spec.rewards)}, train)
    return JobDatasets(train, _open_all_held_out(spec, cache, results), spec.data, hint)


def _open_all_held_out(
    spec: AlignmentJobSpec, cache: Path, results: Mapping[str, Path]
) -> dict[str | None, Sequence[RowDataset]]:
    return {rows.name: _open_held_out(spec, rows, cache, results) for rows in spec.held_out_rows}


def _open_held_out(
    spec: AlignmentJobSpec, rows: HeldOutRows, cache: Path, results: Mapping[str, Path]
) -> list[RowDataset]:
    """Open a set of held-out rows."""
    datasets = _open_dataset(rows.data, format_path(("spec", *rows.rows_path)), cache, results)
    if rows.group_by is not None:
        field = rows.field("groupBy")
        for dataset in datasets:
            require_columns(dataset, {field: rows.group_by})
        if rows.group_by == prompt_column(rows.data.value):
            raise DataError(f"{field}: {rows.group_by!r} is the prompt: name another column")
        if rows.group_by in token_columns(rows.data.value):
            raise DataError(
                f"{field}: {rows.group_by!r} holds the token ids of the rows, or those that are trained on: "
                "name another column"
            )
    rewards = {
        f"spec.rewards[{index}]": reward
        for index, reward in enumerate(spec.rewards)
        if rows.is_scored_by(reward)
    }
    _check_source_column(rewards, rows, datasets)
    _check_reward_columns(rewards, datasets)
    sampled = _initial_policy_column(rows, datasets)
    for path, score in rows.score_fields():
        for dataset in datasets:
            _require_scored_columns(dataset.with_columns(sampled), score, format_path(("spec", *path)))
    return datasets


def _initial_policy_column(rows: HeldOutRows, datasets: Sequence[RowDataset]) -> dict[str, None]:
    """Return the column of the initial policy's responses, which the driver adds; empty: there is none.

    Raises DataError where the rows have a column of this name.
    """
    column = None if rows.sampling is None else rows.sampling.initial_policy_column
    if column is None:
        return {}
    for dataset in datasets:
        if column in dataset.columns:
            raise DataError(
                f"{rows.field('sampling', 'initialPolicyColumn')}: {dataset.name} has a column {column!r} "
                "of its own: choose another name"
            )
    return {column: None}


def _check_source_column(
    rewards: Mapping[str, Reward], rows: HeldOutRows, datasets: Sequence[RowDataset]
) -> None:
    """Raise DataError where a reward scores some sources and held-out rows do not tell theirs.

    Args:
        rewards: Path in the spec -> reward.
    """
    for path, reward in rewards.items():
        if reward.sources is not None and any(SOURCE_COLUMN not in dataset.columns for dataset in datasets):
            raise DataError(
                f"{path}.sources: the reward scores the sources {', '.join(reward.sources)}, "
                f"and the rows of {rows.field('data')} have no column {SOURCE_COLUMN!r} that names theirs: "
                f"add the column, or set {rows.field('data')}.prompts.values: {{{SOURCE_COLUMN}: NAME}}"
            )


def _check_reward_columns(rewards: Mapping[str, Reward], datasets: Sequence[RowDataset]) -> None:
    """Raise DataError where a reward needs a column that the rows that it scores do not have.

    Args:
        rewards: Path in the spec -> reward.
    """
    for path, reward in rewards.items():
        for rows in datasets:
            # Rows of validation without a mixture may be of any source.
            if not rows.entry or reward.scores_source(rows.entry):
                _require_scored_columns(rows, reward, path)


def _require_scored_columns(rows: RowDataset, entry: ScoreCalls, path: str) -> None:
    columns = {f"{path}.{field}": column for field, column in entry.named_columns().items()}
    require_columns(rows, columns)
    member = "judge" if entry.policy_judge is None else "policyJudge"
    for column in () if entry.questions is None else entry.questions.template_columns:
        require_columns(rows, {f"{path}.{member}.template": column})


def _open_dataset(data: Data, path: str, cache: Path, results: Mapping[str, Path]) -> list[RowDataset]:
    """Open the source, or each entry of the mixture."""
    rows = data.value
    if rows.source is not None:
        sources = [
            open_source(rows.source, f"{path}.source", cache, rows.limit, results).with_columns(rows.values)
        ]
    else:
        sources = list(_open_mixture(rows, path, cache, results))
    for source in sources:
        require_columns(source, referenced_columns(rows, path))
        if rows.template is not None:
            check_template_columns(rows.template, source.columns, f"{path}.template")
    return sources


def _open_mixture(rows: DataSet, path: str, cache: Path, results: Mapping[str, Path]) -> Iterator[RowDataset]:
    for field, column in referenced_columns(rows, path).items():
        if column == SOURCE_COLUMN:
            raise DataError(
                f"{field}: the column {column!r} of a mixture holds the name of the row's entry: rename the "
                "column in the rows"
            )
    for index, entry in enumerate(rows.mixture or ()):
        source = open_source(entry.source, f"{path}.mixture[{index}].source", cache, entry.limit, results)
        source = source.with_columns(rows.values)
        if entry.system_prompt is not None:
            columns = message_columns(rows)
            source = source.map(partial(with_system_message, columns=columns, text=entry.system_prompt))
        yield source.as_entry(entry.name)
