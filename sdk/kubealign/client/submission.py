"""Parses submissions: a job, a document, a YAML text, a file, or several of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kubealign.client.errors import JobInvalid
from kubealign.spec.dependencies import order_by_dependencies
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document, load_jobs, parse_jobs

#: One document: a job, or its YAML as a mapping.
Document: TypeAlias = AlignmentJob | Mapping[str, Any]
#: A YAML text or a path of a YAML file; either may hold several documents.
DocumentSource: TypeAlias = str | Path

_FILE_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Submission:
    """Documents in dependency order. `is_list`: the submission was a list, even one of a single job."""

    documents: Sequence[dict[str, Any]]
    is_list: bool


def parse_submission(source: Document | DocumentSource | Sequence[Document | DocumentSource]) -> Submission:
    """Parse a submission. Raises JobInvalid with all errors."""
    try:
        if isinstance(source, str | Path | AlignmentJob | Mapping):
            jobs = _load_jobs(source)
            several = len(jobs) > 1
        else:
            jobs, several = [job for item in source for job in _load_jobs(item)], True
        _check_unique_names(jobs)
        # The backend checks that the other dependencies exist.
        ordered = order_by_dependencies(jobs, finished=lambda name: True)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    return Submission([to_document(job) for job in ordered], several)


def to_document(job: AlignmentJob) -> dict[str, Any]:
    """Return the job's document with the fields that were set; defaults are omitted."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": job.metadata.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
    }


def _load_jobs(source: Document | DocumentSource) -> list[AlignmentJob]:
    if isinstance(source, AlignmentJob):
        return [source]
    if isinstance(source, Mapping):
        return [job_from_document({name: value for name, value in source.items() if name != "status"})]
    if isinstance(source, Path):
        return load_jobs(source)
    if not isinstance(source, str):
        raise JobInvalid(
            f"a {type(source).__name__} is not a job: submit an AlignmentJob, a dict, a YAML text or a Path"
        )
    # A file name is not YAML of a job, so the two cannot be confused.
    is_file_name = source.strip().endswith(_FILE_SUFFIXES) and "\n" not in source.strip()
    return load_jobs(Path(source.strip())) if is_file_name else parse_jobs(source)


def _check_unique_names(jobs: Sequence[AlignmentJob]) -> None:
    names = [job.name for job in jobs]
    duplicates = [name for index, name in enumerate(names) if name in names[:index]]
    if duplicates:
        raise SpecErrors(
            SpecError("another job of this submission has this name: rename one", "metadata.name", name)
            for name in duplicates
        )
