"""The job's data sets, opened and their columns checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubealign.spec.data import Data
from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.fields import named_columns, prompt_column, read
from kubealign_services.data.rendering import training_texts
from kubealign_services.data.sources import Source, open_source, require_columns
from kubealign_services.data.templates import check_columns


@dataclass(frozen=True)
class OpenedData:
    """Rows to learn from, and rows to measure on where the job has them."""

    train: Source
    validation: Source | None
    spec: Data

    def texts(self) -> Iterator[str]:
        """All text to learn from, as a tokenizer is trained on it."""
        for number, row in enumerate(self.train):
            yield from training_texts(read(self.spec.value, row, number))


def open_data(job: AlignmentJob, cache: Path, results: Mapping[str, Path]) -> OpenedData:
    """Open what the job names. results: name of a job whose rows it reads -> folder of its result. Raises
    DataError where a source is missing or empty, or lacks a column that is named."""
    spec = job.spec
    train = _opened(spec.data, "spec.data", cache, results)
    if spec.validation is None:
        return OpenedData(train, None, spec.data)
    held = _opened(spec.validation.data, "spec.validation.data", cache, results)
    if spec.validation.group_by is not None:
        require_columns(held, {"spec.validation.groupBy": spec.validation.group_by})
        if spec.validation.group_by == prompt_column(spec.validation.data.value):
            raise DataError(
                f"spec.validation.groupBy: {spec.validation.group_by!r} is the prompt: name another column"
            )
    return OpenedData(train, held, spec.data)


def _opened(data: Data, place: str, cache: Path, results: Mapping[str, Path]) -> Source:
    rows = data.value
    place = f"{place}.{data.member}"
    source = open_source(rows.source, f"{place}.source", cache, rows.limit, results).having(rows.values)
    require_columns(source, named_columns(rows, place))
    if rows.template is not None:
        check_columns(rows.template, source.columns, f"{place}.template")
    return source
