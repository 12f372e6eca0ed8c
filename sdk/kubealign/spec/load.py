"""Files to jobs: every error of every document at once, each with its line, its place and its remedy."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from kubealign.spec.coherence import problems
from kubealign.spec.dependencies import mismatches, order
from kubealign.spec.documents import Document, documents, plain
from kubealign.spec.errors import SpecError, SpecErrors, shown
from kubealign.spec.explain import explain
from kubealign.spec.fields import allowed, nearest
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.overrides import BadOverride, Override
from kubealign.spec.paths import Place, dotted

_OTHER_TYPE = ("string_type", "int_type", "float_type", "bool_type")
_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


@dataclass
class JobFile:
    """What one file holds: its jobs, or what is wrong with them."""

    path: Path
    jobs: list[AlignmentJob] = field(default_factory=list)
    errors: list[SpecError] = field(default_factory=list)


def load_jobs(
    path: Path, parameters: Mapping[str, str] = _NO_PARAMETERS, overrides: Sequence[str] = ()
) -> list[AlignmentJob]:
    """The jobs of a YAML file in its order; file paths in them are made absolute from the file's folder.

    `parameters` fill in ${NAME} and ${NAME:-default}; `overrides` are PATH=VALUE, or
    JOB:PATH=VALUE for one job.
    Raises SpecErrors with everything that is wrong.
    """
    files, errors = load_files([path], parameters, overrides)
    errors = [*errors, *files[0].errors]
    if errors:
        raise SpecErrors(errors)
    return files[0].jobs


def load_files(
    paths: Sequence[Path], parameters: Mapping[str, str] = _NO_PARAMETERS, overrides: Sequence[str] = ()
) -> tuple[list[JobFile], list[SpecError]]:
    """Several files with the same parameters and overrides, and what is wrong with those themselves."""
    errors: list[SpecError] = []
    parsed: list[Override] = []
    for text in overrides:
        try:
            parsed.append(Override.parse(text))
        except BadOverride as error:
            errors.append(SpecError(str(error), f"--set {text}"))
    mentioned: set[str] = set()
    found: list[Document] = []
    files = []
    for path in paths:
        file = JobFile(path)
        here = _documents(file, parameters, mentioned)
        _load(file, here, parsed, file.path.absolute().parent)
        found += here
        files.append(file)
    errors += _unused_parameters(parameters, mentioned)
    errors += _unused_overrides(parsed, found)
    return files, errors


def job_of_text(text: str) -> AlignmentJob:
    """The job of a text that holds one document; file paths in it stay as they are. Raises SpecErrors."""
    found, errors = documents(text, _NO_PARAMETERS, set())
    if not errors and len(found) != 1:
        errors = [SpecError(f"the text must hold one document, it holds {len(found)}")]
    if errors:
        raise SpecErrors(errors)
    job, errors = _validate(found[0], folder=None)
    if job is None or errors:
        raise SpecErrors(errors)
    return job


def jobs_of_text(text: str, folder: Path | None = None) -> list[AlignmentJob]:
    """The jobs of a text, in its order; file paths in them are made absolute from `folder`, else they stay
    as they are. Raises SpecErrors with everything that is wrong."""
    file = JobFile(Path())
    found, file.errors = documents(text, _NO_PARAMETERS, set())
    if not found and not file.errors:
        file.errors = [SpecError("is empty: it holds no job")]
    _load(file, found, [], folder)
    if file.errors:
        raise SpecErrors(replace(error, file=None) for error in file.errors)
    return file.jobs


def job_of_value(value: Mapping[str, Any], folder: Path | None = None) -> AlignmentJob:
    """The job of a document that has been parsed; file paths in it are made absolute from `folder`, else
    they stay as they are. Raises SpecErrors."""
    job, errors = _validate(Document(0, dict(value), {}), folder)
    if job is None or errors:
        raise SpecErrors(errors)
    return job


def _documents(file: JobFile, parameters: Mapping[str, str], mentioned: set[str]) -> list[Document]:
    try:
        text = file.path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        file.errors.append(SpecError("there is no such file", file=file.path))
        return []
    except IsADirectoryError:
        file.errors.append(SpecError("is a folder: name the file in it", file=file.path))
        return []
    except UnicodeDecodeError as error:
        file.errors.append(SpecError(f"is no UTF-8 text: byte {error.start} is not", file=file.path))
        return []
    except OSError as error:
        file.errors.append(SpecError(f"cannot be read: {error.strerror}", file=file.path))
        return []
    found, errors = documents(text, parameters, mentioned)
    if not found and not errors:
        errors = [SpecError("is empty: it holds no job")]
    file.errors += [replace(error, file=file.path) for error in errors]
    return found


def _load(file: JobFile, found: list[Document], overrides: list[Override], folder: Path | None) -> None:
    errors: list[SpecError] = []
    sound: list[tuple[AlignmentJob, Document]] = []
    names: dict[str, Document] = {}
    for document in found:
        errors += _override(document, overrides, alone=len(found) == 1)
        job, wrong = _validate(document, folder)
        errors += wrong
        if job is not None:
            sound.append((job, document))
        first = names.setdefault(document.name or "", document)
        if document.name and first is not document:
            place: Place = ("metadata", "name")
            message = f"another job of this file has this name, in line {first.line(place)}: rename one"
            errors.append(document.error(place, message, document.name))
    if not errors and not file.errors:
        errors += _across([job for job, _ in sound], {job.name: document for job, document in sound})
    # A value that could not be read stands as it was: one error about it is enough.
    told = {(error.document, error.path) for error in file.errors if error.path}
    errors = [replace(error, file=file.path) for error in errors if (error.document, error.path) not in told]
    file.errors = sorted(
        [*file.errors, *errors], key=lambda e: (e.document is None, e.document or 0, e.line or 0)
    )
    file.jobs = [] if file.errors else [job for job, _ in sound]


def _override(document: Document, overrides: list[Override], *, alone: bool) -> Iterator[SpecError]:
    if not isinstance(document.value, dict):
        return
    for override in (override for override in overrides if override.applies(document)):
        try:
            override.apply(document)
        except BadOverride as error:
            message = str(error)
            if override.job is None and not alone:
                message += f"; for one job alone write --set JOB:{override.text}"
            yield SpecError(message, f"--set {override.text}", document=document.index, job=document.name)


def _validate(document: Document, folder: Path | None) -> tuple[AlignmentJob | None, list[SpecError]]:
    if not isinstance(document.value, dict):
        message = "must be an object that begins with apiVersion, kind, metadata and spec"
        return None, [document.error((), message, shown(document.value))]
    try:
        return _job(document, folder), []
    except ValidationError as error:
        if not _retyped(document, error.errors(include_url=False)):
            return None, _errors(document, folder, error)
    try:
        return _job(document, folder), []
    except ValidationError as error:
        return None, _errors(document, folder, error)


def _job(document: Document, folder: Path | None) -> AlignmentJob:
    # By way of JSON, so that what is accepted here is what Kubernetes accepts: no "5" for 5, no snake_case.
    return AlignmentJob.model_validate_json(
        json.dumps(document.value), strict=True, context={"folder": folder}, by_alias=True, by_name=False
    )


def _retyped(document: Document, errors: Iterable[ErrorDetails]) -> bool:
    """Give values that came as text (a parameter, an override) the type that their field wants. Whether any
    had another."""
    changed = False
    for error in errors:
        place = error["loc"]
        text = document.texts.get(place)
        if text is None or error["type"] not in _OTHER_TYPE:
            continue
        value = text if error["type"] == "string_type" else plain(text)
        if type(value) is not type(error["input"]):
            _put(document.value, place, value)
            changed = True
    return changed


def _put(holder: Any, place: Place, value: Any) -> None:
    for part in place[:-1]:
        holder = holder[part]
    holder[place[-1]] = value


def _errors(document: Document, folder: Path | None, error: ValidationError) -> list[SpecError]:
    found: dict[tuple[Place, str], SpecError] = {}
    for details in error.errors(include_url=False):
        message, held = explain(details, AlignmentJob)
        # Of a map's key pydantic says so in one more part, which no document has.
        place: Place = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
        found[place, message] = document.error(place, message, held)
    for below, held_value, message in problems(_sound_fields(document.value.get("spec"), folder)):
        at: Place = ("spec", *below)
        held = "" if held_value is None else shown(held_value)
        found.setdefault((at, message), document.error(at, message, held))
    return list(found.values())


def _sound_fields(spec: Any, folder: Path | None) -> dict[str, Any]:
    """The fields of the spec that are right by themselves: they can be compared while others are not."""
    sound: dict[str, Any] = {}
    if not isinstance(spec, dict):
        return sound
    names = {info.alias: name for name, info in AlignmentJobSpec.model_fields.items()}
    for name, info in allowed(AlignmentJobSpec).items():
        if name not in spec:
            if not info.is_required():
                sound[names[name]] = info.get_default(call_default_factory=True)
            continue
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, info.annotation))
        try:
            sound[names[name]] = adapter.validate_json(
                json.dumps(spec[name]), strict=True, context={"folder": folder}, by_alias=True, by_name=False
            )
        except ValidationError:
            continue
    return sound


def _across(jobs: list[AlignmentJob], by_name: dict[str, Document]) -> list[SpecError]:
    """What is wrong between the jobs of one file."""
    errors = [by_name[job.name].error(place, message, held) for job, place, held, message in mismatches(jobs)]
    try:
        order(jobs, finished=lambda name: True)
    except SpecErrors as cycles:
        for error in cycles.errors:
            document = by_name[str(error.job)]
            errors.append(
                replace(error, document=document.index, line=document.line(_place(document, error.path)))
            )
    return errors


def _place(document: Document, path: str) -> Place:
    return next((place for place in document.lines if dotted(place) == path), ())


def _unused_parameters(parameters: Mapping[str, str], mentioned: set[str]) -> Iterator[SpecError]:
    for name in parameters:
        if name not in mentioned:
            meant = nearest(name, sorted(mentioned))
            there = ", ".join(sorted(mentioned)) or "none"
            guess = f"did you mean {meant}? " if meant else ""
            yield SpecError(f"no document has this parameter: {guess}there are {there}", f"--param {name}")


def _unused_overrides(overrides: list[Override], found: list[Document]) -> Iterator[SpecError]:
    names = [document.name for document in found if document.name]
    for override in overrides:
        if override.job is not None and override.job not in names:
            meant = nearest(override.job, names)
            guess = f"did you mean {meant}? " if meant else ""
            message = f"there is no job {override.job}: {guess}there are {', '.join(names) or 'none'}"
            yield SpecError(message, f"--set {override.text}")
