"""Loads job files. All errors of all documents are reported at once, each with line, path and remedy."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from kubealign.spec.attention_heads import folder_heads_problems
from kubealign.spec.cross_field_validation import cross_field_problems, router_fields
from kubealign.spec.dependencies import named_models, order_by_dependencies, result_kind_errors
from kubealign.spec.errors import SpecError, SpecErrors, format_value
from kubealign.spec.evaluated_data import is_evaluation_without_data, with_evaluated_data
from kubealign.spec.field_lookup import closest_name, document_fields
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.loading.error_messages import error_message
from kubealign.spec.loading.overrides import InvalidOverride, Override
from kubealign.spec.loading.yaml_documents import YamlDocument, parse_documents, parse_scalar
from kubealign.spec.model_types import folder_problem, folder_router_problem, has_weights
from kubealign.spec.paths import DocumentPath, format_path

_TYPE_ERRORS = ("string_type", "int_type", "float_type", "bool_type")
_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


@dataclass
class JobFile:
    """Jobs or errors of one file."""

    path: Path
    jobs: list[AlignmentJob] = field(default_factory=list)
    errors: list[SpecError] = field(default_factory=list)


def load_jobs(
    path: Path, parameters: Mapping[str, str] = _NO_PARAMETERS, overrides: Sequence[str] = ()
) -> list[AlignmentJob]:
    """Load the jobs of a YAML file in the file's order. File paths are made absolute from the file's folder.

    Args:
        parameters: Values of ${NAME} and ${NAME:-default}.
        overrides: PATH=VALUE, or JOB:PATH=VALUE for one job.

    Raises:
        SpecErrors: All errors in the file.
    """
    files, errors = load_files([path], parameters, overrides)
    errors = [*errors, *files[0].errors]
    if errors:
        raise SpecErrors(errors)
    return files[0].jobs


def load_files(
    paths: Sequence[Path], parameters: Mapping[str, str] = _NO_PARAMETERS, overrides: Sequence[str] = ()
) -> tuple[list[JobFile], list[SpecError]]:
    """Load several files with the same arguments. Also return the errors in the arguments."""
    parsed, errors = _parse_overrides(overrides)
    used_parameters: set[str] = set()
    documents_found: list[YamlDocument] = []
    files = []
    for path in paths:
        file = JobFile(path)
        file_documents = _read_documents(file, parameters, used_parameters)
        _load_documents(file, file_documents, parsed, file.path.absolute().parent)
        documents_found += file_documents
        files.append(file)
    errors += _unused_parameters(parameters, used_parameters)
    errors += _unused_overrides(parsed, documents_found)
    return files, errors


def parse_job(text: str) -> AlignmentJob:
    """Parse a text that holds one document. File paths are left as they are. Raises SpecErrors."""
    parsed, errors = parse_documents(text, _NO_PARAMETERS, set())
    if not errors and len(parsed) != 1:
        errors = [SpecError(f"the text must hold one document, it holds {len(parsed)}")]
    if errors:
        raise SpecErrors(errors)
    job, errors = _validate(parsed[0], folder=None)
    if job is None or errors:
        raise SpecErrors(errors)
    return job


def parse_jobs(text: str, folder: Path | None = None) -> list[AlignmentJob]:
    """Parse the jobs of a text, in its order.

    Args:
        folder: Folder from which file paths are made absolute; None: paths are left as they are.

    Raises:
        SpecErrors: All errors in the text.
    """
    file = JobFile(Path())
    parsed, file.errors = parse_documents(text, _NO_PARAMETERS, set())
    if not parsed and not file.errors:
        file.errors = [SpecError("is empty: it holds no job")]
    _load_documents(file, parsed, [], folder)
    if file.errors:
        raise SpecErrors(replace(error, file=None) for error in file.errors)
    return file.jobs


def job_from_document(
    value: Mapping[str, Any], folder: Path | None = None, overrides: Sequence[str] = ()
) -> AlignmentJob:
    """Validate a parsed document.

    Args:
        folder: Folder from which file paths are made absolute; None: paths are left as they are.
        overrides: PATH=VALUE, or JOB:PATH=VALUE for the job of that name.

    Raises:
        SpecErrors: All errors in the document and the overrides.
    """
    document = YamlDocument(0, copy.deepcopy(dict(value)) if overrides else dict(value), {})
    parsed, errors = _parse_overrides(overrides)
    errors += _apply_overrides(document, parsed, alone=True)
    errors += _unused_overrides(parsed, [document])
    job, job_errors = _validate(document, folder)
    errors += job_errors
    if job is None or errors:
        raise SpecErrors(errors)
    return job


def _parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[SpecError]]:
    """Parse PATH=VALUE arguments. Also return the errors of those that cannot be parsed."""
    parsed: list[Override] = []
    errors: list[SpecError] = []
    for text in texts:
        try:
            parsed.append(Override.parse(text))
        except InvalidOverride as error:
            errors.append(SpecError(str(error), f"--set {text}"))
    return parsed, errors


def _read_documents(
    file: JobFile, parameters: Mapping[str, str], used_parameters: set[str]
) -> list[YamlDocument]:
    try:
        text = file.path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        file.errors.append(SpecError("there is no such file", file=file.path))
        return []
    except IsADirectoryError:
        file.errors.append(SpecError("is a folder: name the file in it", file=file.path))
        return []
    except UnicodeDecodeError as error:
        file.errors.append(SpecError(f"is not UTF-8 text: byte {error.start} is invalid", file=file.path))
        return []
    except OSError as error:
        file.errors.append(SpecError(f"cannot be read: {error.strerror}", file=file.path))
        return []
    parsed, errors = parse_documents(text, parameters, used_parameters)
    if not parsed and not errors:
        errors = [SpecError("is empty: it holds no job")]
    file.errors += [replace(error, file=file.path) for error in errors]
    return parsed


def _load_documents(
    file: JobFile, parsed: list[YamlDocument], overrides: list[Override], folder: Path | None
) -> None:
    errors: list[SpecError] = []
    valid: list[tuple[AlignmentJob, YamlDocument]] = []
    names: dict[str, YamlDocument] = {}
    for document in parsed:
        errors += _apply_overrides(document, overrides, alone=len(parsed) == 1)
        job, job_errors = _validate(document, folder)
        errors += job_errors
        if job is not None:
            valid.append((job, document))
        first = names.setdefault(document.name or "", document)
        if document.name and first is not document:
            name_path: DocumentPath = ("metadata", "name")
            message = (
                f"another job of this file has this name, in line {first.line_of(name_path)}: rename one"
            )
            errors.append(document.error(name_path, message, document.name))
    if not errors and not file.errors:
        errors += _cross_job_errors(
            [job for job, _ in valid], {job.name: document for job, document in valid}
        )
        errors += [error for job, document in valid for error in _folder_errors(job, document)]
    # A value that could not be parsed is left unchanged: report only one error about it.
    reported = {(error.document, error.path) for error in file.errors if error.path}
    errors = [
        replace(error, file=file.path) for error in errors if (error.document, error.path) not in reported
    ]
    file.errors = sorted(
        [*file.errors, *errors], key=lambda e: (e.document is None, e.document or 0, e.line or 0)
    )
    file.jobs = [] if file.errors else [job for job, _ in valid]


def _apply_overrides(
    document: YamlDocument, overrides: list[Override], *, alone: bool
) -> Iterator[SpecError]:
    if not isinstance(document.value, dict):
        return
    for override in (override for override in overrides if override.applies(document)):
        try:
            override.apply(document)
        except InvalidOverride as error:
            message = str(error)
            if override.job is None and not alone:
                message += f"; for one job alone write --set JOB:{override.text}"
            yield SpecError(message, f"--set {override.text}", document=document.index, job=document.name)


def _validate(document: YamlDocument, folder: Path | None) -> tuple[AlignmentJob | None, list[SpecError]]:
    if not isinstance(document.value, dict):
        message = "must be an object that begins with apiVersion, kind, metadata and spec"
        return None, [document.error((), message, format_value(document.value))]
    try:
        return _parse_job(document, folder), []
    except ValidationError as error:
        if not _retype_texts(document, error.errors(include_url=False)):
            return None, _document_errors(document, folder, error)
    try:
        return _parse_job(document, folder), []
    except ValidationError as error:
        return None, _document_errors(document, folder, error)


def _parse_job(document: YamlDocument, folder: Path | None) -> AlignmentJob:
    # Validated as JSON, so that only input that Kubernetes accepts is accepted: no "5" for 5, no snake_case.
    return AlignmentJob.model_validate_json(
        json.dumps(document.value), strict=True, context={"folder": folder}, by_alias=True, by_name=False
    )


def _retype_texts(document: YamlDocument, errors: Iterable[ErrorDetails]) -> bool:
    """Convert text values from parameters and overrides to the type of their field.

    Return True if any changed.
    """
    changed = False
    for error in errors:
        path = error["loc"]
        text = document.untyped_texts.get(path)
        if text is None or error["type"] not in _TYPE_ERRORS:
            continue
        value = text if error["type"] == "string_type" else parse_scalar(text)
        if type(value) is not type(error["input"]):
            _set_value(document.value, path, value)
            changed = True
    return changed


def _set_value(holder: Any, path: DocumentPath, value: Any) -> None:
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value


def _document_errors(document: YamlDocument, folder: Path | None, error: ValidationError) -> list[SpecError]:
    by_path_and_message: dict[tuple[DocumentPath, str], SpecError] = {}
    for details in error.errors(include_url=False):
        message, shown_value = error_message(details, AlignmentJob)
        # For an invalid map key, pydantic appends a path part that the document does not have.
        path: DocumentPath = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
        if path[:2] == ("spec", "data") and is_evaluation_without_data(document.value.get("spec")):
            continue  # reported for spec.validation, whose data they are
        by_path_and_message[path, message] = document.error(path, message, shown_value)
    for below, held_value, message in cross_field_problems(_valid_fields(document.value.get("spec"), folder)):
        full_path: DocumentPath = ("spec", *below)
        shown_value = "" if held_value is None else format_value(held_value)
        by_path_and_message.setdefault((full_path, message), document.error(full_path, message, shown_value))
    return list(by_path_and_message.values())


def _valid_fields(spec: Any, folder: Path | None) -> dict[str, Any]:
    """Return the valid fields of the spec, so that they can be checked together while others are invalid."""
    valid: dict[str, Any] = {}
    if not isinstance(spec, dict):
        return valid
    spec = with_evaluated_data(spec)
    names = {info.alias: name for name, info in AlignmentJobSpec.model_fields.items()}
    for name, info in document_fields(AlignmentJobSpec).items():
        if name not in spec:
            if not info.is_required():
                valid[names[name]] = info.get_default(call_default_factory=True)
            continue
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, info.annotation))
        try:
            valid[names[name]] = adapter.validate_json(
                json.dumps(spec[name]), strict=True, context={"folder": folder}, by_alias=True, by_name=False
            )
        except ValidationError:
            continue
    return valid


def _cross_job_errors(jobs: list[AlignmentJob], by_name: dict[str, YamlDocument]) -> list[SpecError]:
    """Return the errors between the jobs of one file."""
    errors = [
        by_name[job.name].error(value_path, message, value)
        for job, value_path, value, message in result_kind_errors(jobs)
    ]
    try:
        order_by_dependencies(jobs, finished=lambda name: True)
    except SpecErrors as cycles:
        for error in cycles.errors:
            document = by_name[str(error.job)]
            errors.append(
                replace(
                    error, document=document.index, line=document.line_of(_find_path(document, error.path))
                )
            )
    return errors


def _folder_errors(job: AlignmentJob, document: YamlDocument) -> Iterator[SpecError]:
    """Yield the errors of models in folders of this machine; other folders may be in the image.

    A folder without weights is that of a plan, which counts more types than trainers can run.
    """
    for path, model in named_models(job):
        if model.path is None or not has_weights(Path(model.path)):
            continue
        message = folder_problem(Path(model.path))
        if message is not None:
            yield document.error((*path, "path"), message, format_value(model.path))
    for path, value, message in folder_heads_problems(job):
        yield document.error(path, message, format_value(value))
    policy = job.spec.policy.model
    message = None if policy.path is None else folder_router_problem(Path(policy.path))
    if message is not None:
        for router_path, value in router_fields(job.spec.algorithm, job.spec.rollout):
            yield document.error(("spec", *router_path), message, format_value(value))


def _find_path(document: YamlDocument, path: str) -> DocumentPath:
    return next((line_path for line_path in document.lines if format_path(line_path) == path), ())


def _unused_parameters(parameters: Mapping[str, str], used: set[str]) -> Iterator[SpecError]:
    for name in parameters:
        if name not in used:
            suggestion = closest_name(name, sorted(used))
            known_names = ", ".join(sorted(used)) or "none"
            guess = f"did you mean {suggestion}? " if suggestion else ""
            yield SpecError(
                f"no document has this parameter: {guess}there are {known_names}", f"--param {name}"
            )


def _unused_overrides(overrides: list[Override], parsed: list[YamlDocument]) -> Iterator[SpecError]:
    names = [document.name for document in parsed if document.name]
    for override in overrides:
        if override.job is not None and override.job not in names:
            suggestion = closest_name(override.job, names)
            guess = f"did you mean {suggestion}? " if suggestion else ""
            message = f"there is no job {override.job}: {guess}there are {', '.join(names) or 'none'}"
            yield SpecError(message, f"--set {override.text}")
