"""What may be handed in: a job, a document, a YAML text, a file, or several of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from kubealign.client.errors import JobInvalid
from kubealign.spec.dependencies import order
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.load import job_of_value, jobs_of_text, load_jobs

#: One document: a job, or what its YAML holds.
Document: TypeAlias = AlignmentJob | Mapping[str, Any]
#: A YAML text, or a file of one; either may hold several documents.
Text: TypeAlias = str | Path

_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class HandedIn:
    """Documents, each after those that it depends on. `several`: whether a list is meant, even of one."""

    documents: Sequence[dict[str, Any]]
    several: bool


def handed_in(given: Document | Text | Sequence[Document | Text]) -> HandedIn:
    """Raises JobInvalid with everything that is wrong."""
    try:
        if isinstance(given, str | Path | AlignmentJob | Mapping):
            jobs = _jobs(given)
            several = len(jobs) > 1
        else:
            jobs, several = [job for one in given for job in _jobs(one)], True
        _refuse_same_names(jobs)
        # Whether the others are there, the site knows.
        ordered = order(jobs, finished=lambda name: True)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    return HandedIn([document_of(job) for job in ordered], several)


def document_of(job: AlignmentJob) -> dict[str, Any]:
    """The job with what was set, defaults left out."""
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
            f"a {type(given).__name__} is no job: hand in an AlignmentJob, a dict, a YAML text or a Path"
        )
    # The name of a file is no YAML that could be a job.
    named = given.strip().endswith(_FILES) and "\n" not in given.strip()
    return load_jobs(Path(given.strip())) if named else jobs_of_text(given)


def _refuse_same_names(jobs: Sequence[AlignmentJob]) -> None:
    names = [job.name for job in jobs]
    again = [name for index, name in enumerate(names) if name in names[:index]]
    if again:
        raise SpecErrors(
            SpecError("another job of these has this name: rename one", "metadata.name", name)
            for name in again
        )
