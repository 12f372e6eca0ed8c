"""Differences between the specs of two runs of a job, and the ones that are allowed."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kubealign.local.errors import RunRefused
from kubealign.spec.changes.differences import field_differences
from kubealign.spec.job import AlignmentJob
from kubealign.spec.mutable_fields import LENGTH_FIELDS, MUTABLE_BETWEEN_RUNS
from kubealign.spec.sections.rollout import Rollout

_LIST_INDEX = re.compile(r"\[\d+\]")


def job_document(job: AlignmentJob) -> dict[str, Any]:
    """Return the job as a JSON-compatible document with every default filled in."""
    return job.model_dump(mode="json", by_alias=True)


def read_job(path: Path) -> AlignmentJob | None:
    """Read the job of an earlier run; None where there was none. Raises RunRefused for an invalid file."""
    try:
        return AlignmentJob.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunRefused(
            f"{path} was written by another version of kubealign, or is damaged: start again with --fresh"
        ) from error


def forbidden_changes(before: AlignmentJob, after: AlignmentJob) -> list[str]:
    """Return the fields that differ and must not, such as `spec.seed (1, now 2)`.

    Empty: the run may continue. A value that is left to its default is compared by what it amounts to.
    """
    old_document, new_document = (job_document(_with_defaults(job)) for job in (before, after))
    return [
        f"{field.path} ({_shorten(field.before)}, now {_shorten(field.now)})"
        for field in field_differences(old_document, new_document)
        if not _is_harmless(field.path, field.before, field.now)
    ]


def _with_defaults(job: AlignmentJob) -> AlignmentJob:
    """Return the job with the learning rates, the precision and the reference that its null fields stand for.

    Versions differ in these defaults: a run of another version continues only where the value is the same.
    """
    spec = job.spec
    reference = spec.reference
    if reference is None and (reference := spec.effective_reference) is not None:
        # Its weights are the policy's, which is compared too.
        reference = reference.model_copy(update={"model": None})
    sections = {
        "trainer": spec.effective_trainer,
        "critic": spec.effective_critic,
        "reference": reference,
        "rollout": spec.effective_rollout or Rollout(),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=sections)})


def _is_harmless(path: str, old: Any, new: Any) -> bool:
    if any(fnmatchcase(path, field) for field in LENGTH_FIELDS):
        return new is None or (old is not None and new > old)
    path = _LIST_INDEX.sub("[]", path)
    return any(path == field or path.startswith(field + ".") for field in MUTABLE_BETWEEN_RUNS)


def _shorten(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
