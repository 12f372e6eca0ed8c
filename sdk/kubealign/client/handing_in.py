"""Parses submissions: a job, a document, a YAML text, a file, or several of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kubealign.client.errors import JobInvalid
from kubealign.spec.dependencies import order
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.load import job_of_value, jobs_of_text, load_jobs

#: One document: a job, or its YAML as a mapping.
Document: TypeAlias = AlignmentJob | Mapping[str, Any]
#: A YAML text or a path of a YAML file; either may hold several documents.
Text: TypeAlias = str | Path

_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class HandedIn:
    """Documents in dependency order. `is_list`: the submission was a list, even one of a single job."""

    documents: Sequence[dict[str, Any]]
    several: bool


def handed_in(given: Document | Text | Sequence[Document | Text]) -> HandedIn:
    """Parse a submission. Raises JobInvalid with all errors."""
    try:
        if isinstance(given, str | Path | AlignmentJob | Mapping):
            jobs = _jobs(given)
            several = len(jobs) > 1
        else:
            jobs, several = [job for item in given for job in _jobs(item)], True
        _refuse_same_names(jobs)
        # The backend checks that the other dependencies exist.
        ordered = order(jobs, finished=lambda name: True)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    return HandedIn([document_of(job) for job in ordered], several)


def document_of(job: AlignmentJob) -> dict[str, Any]:
    """Return the job's document with the fields that were set; defaults are omitted."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": job.metadata.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
    }


def _jobs(given: Document | Text) -> list[AlignmentJob]:
    if isinstance(given, AlignmentJob):
        return [given]
    if isinstance(given, Mapping):
        return [job_of_value({name: value for name, value in given.items() if name != "status"})]
    if isinstance(given, Path):
        return load_jobs(given)
    if not isinstance(given, str):
        raise JobInvalid(
            f"a {type(given).__name__} is not a job: submit an AlignmentJob, a dict, a YAML text or a Path"
        )
    # A file name is not YAML of a job, so the two cannot be confused.
    is_file_name = given.strip().endswith(_FILES) and "\n" not in given.strip()
    return load_jobs(Path(given.strip())) if is_file_name else jobs_of_text(given)


def _refuse_same_names(jobs: Sequence[AlignmentJob]) -> None:
    names = [job.name for job in jobs]
    duplicates = [name for index, name in enumerate(names) if name in names[:index]]
    if duplicates:
        raise SpecErrors(
            SpecError("another job of this submission has this name: rename one", "metadata.name", name)
            for name in duplicates
        )
