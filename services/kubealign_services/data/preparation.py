"""Preparation of a job, once before any role starts: models resolved or built, rows checked and tokenised.

The folder prepared/ is written under another name and renamed when complete, so it exists completely or
not at all; a second run finds it and does nothing.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubealign.spec.changes.differences import field_differences
from kubealign.spec.held_out_rows import HeldOutRows
from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.mixture import check_shares
from kubealign_services.data.models.resolution import ResolvedModels, resolve_models
from kubealign_services.data.models.reward_roles import reward_roles
from kubealign_services.data.models.text_rewards import text_bounds
from kubealign_services.data.prepared import (
    FOLDER,
    INPUTS,
    MODELS,
    REPORT,
    TRAIN,
    DatasetReport,
    PreparationReport,
    PreparedJob,
    load_prepared,
)
from kubealign_services.data.prepared_files import validation_file
from kubealign_services.data.sources.downloads import download_inputs, remove_downloaded_rows
from kubealign_services.data.sources.job_datasets import JobDatasets, open_datasets
from kubealign_services.data.sources.row_dataset import RowDataset
from kubealign_services.data.streaming.streamed_files import StreamedFiles
from kubealign_services.data.tokenization.length_filter import token_budget, training_budget
from kubealign_services.data.tokenization.row_writer import HintedPrompts, write_rows
from kubealign_services.tools.catalog import tool_schemas, write_catalog
from kubealign_services.tools.job_tools import prepare_tools


def prepare(job: AlignmentJob, run_dir: Path, results: Mapping[str, Path]) -> PreparedJob:
    """Prepare the job in run_dir/prepared, or reuse an existing preparation.

    Args:
        results: Name of a job that this one depends on -> the folder of its result.

    Raises DataError for data, a tokenizer or a model that cannot be used as the job asks, and where
    prepared/ was made for another spec; StorageUnavailable where object storage does not answer.
    """
    inputs = preparation_inputs(job)
    folder = run_dir / FOLDER
    if folder.exists():
        _check_inputs(folder, inputs)
        return load_prepared(run_dir)
    results = {**results, **download_inputs(job, run_dir)}
    with _atomic_folder(folder) as draft:
        data = open_datasets(job, draft / "cache", results)
        if job.spec.data.value.streaming is not None:
            # The hub's and a mixture's rows are no files, and are not streamed.
            StreamedFiles.of_source(data.train[0].files).write(draft)
        models = resolve_models(job, data, draft, results)
        tools = prepare_tools(job, models.tokenizer)
        if tools:
            write_catalog(tools, draft)
        report = _write_datasets(job, data, models, draft, tool_schemas(tools))
        shutil.rmtree(draft / "cache", ignore_errors=True)
        model_paths = {role: _stored_path(path, draft) for role, path in models.folders.items()}
        for name, content in {MODELS: model_paths, INPUTS: inputs, REPORT: report.model_dump()}.items():
            (draft / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    if job.spec.data.value.streaming is None:
        remove_downloaded_rows(job, run_dir)
    return load_prepared(run_dir)


def preparation_inputs(job: AlignmentJob) -> dict[str, Any]:
    """Return the part of the spec that the preparation depends on, as JSON."""
    spec = job.spec
    dumped = spec.model_dump(mode="json", by_alias=True)
    rollout = spec.effective_rollout
    return {
        "seed": spec.seed,
        "algorithm": spec.algorithm.member,
        "policy": dumped["policy"],
        "data": dumped["data"],
        "validation": _validation_inputs(spec.held_out_rows),
        "rollout": None if rollout is None else {"sampling": {"maxTokens": rollout.sampling.max_tokens}},
        "toolCalls": None
        if rollout is None or rollout.tool_calls is None
        else rollout.tool_calls.model_dump(mode="json", by_alias=True, include={"tools", "mcp_servers"}),
        "reference": None
        if spec.effective_reference is None
        else spec.effective_reference.model_dump(mode="json", by_alias=True)["model"],
        "teacher": None if spec.teacher is None else dumped["teacher"]["model"],
        # Null rather than empty: preparations of earlier versions lack it.
        "teachers": {teacher["name"]: teacher["model"] for teacher in dumped["teachers"]} or None,
        "critic": None
        if spec.effective_critic is None
        else spec.effective_critic.model_dump(mode="json", by_alias=True)["model"],
        "hint": None if spec.hint is None else spec.hint.model_dump(mode="json", by_alias=True),
        "rewards": {reward["name"]: reward["model"] or reward["ensemble"] for reward in dumped["rewards"]},
        # Null rather than empty: preparations of earlier versions lack it.
        "evaluate": None if spec.algorithm.evaluate is None else dumped["algorithm"]["evaluate"],
    }


def _validation_inputs(held_out: Sequence[HeldOutRows]) -> dict[str, Any] | None:
    """Return the part of a validation that the preparation depends on; None: there is no validation."""
    if not held_out:
        return None
    own = [_held_out_inputs(rows) for rows in held_out if rows.name is None]
    sets = [_held_out_inputs(rows) | {"name": rows.name} for rows in held_out if rows.name is not None]
    return {**(own[0] if own else {}), "sets": sets or None}


def _held_out_inputs(rows: HeldOutRows) -> dict[str, Any]:
    """Return the part of a section with held-out rows that the preparation depends on.

    Null rather than empty: preparations of earlier versions lack all but data and groupBy.
    """
    max_tokens = None if rows.sampling is None else rows.sampling.max_tokens
    return {
        "data": rows.data.model_dump(mode="json", by_alias=True),
        "groupBy": rows.group_by,
        "rewards": list(rows.rewards or ()) or None,
        "sampling": None if max_tokens is None else {"maxTokens": max_tokens},
    }


def _check_inputs(folder: Path, inputs: dict[str, Any]) -> None:
    try:
        before = json.loads((folder / INPUTS).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read: {error}; delete it to prepare the job again") from error
    now = json.loads(json.dumps(inputs))
    differences = [str(field) for field in field_differences(before, now, ("spec",))]
    if differences:
        raise DataError(
            f"{folder} was made for another spec ({'; '.join(differences[:3])}): "
            "put the spec back, or start the job afresh"
        )


def _write_datasets(
    job: AlignmentJob,
    data: JobDatasets,
    models: ResolvedModels,
    folder: Path,
    tools: Sequence[dict[str, Any]] | None,
) -> PreparationReport:
    spec = job.spec
    rollout = spec.effective_rollout
    sampled = None if rollout is None else rollout.sampling.max_tokens
    tokenizer = models.tokenizer
    if spec.algorithm.evaluate is not None:
        held_out = _write_all_held_out(job, data, models, folder, tools)
        # The rows are read by those who look for training data too, such as the payload limits.
        first = spec.held_out_rows[0].name
        shutil.copyfile(folder / validation_file(first), folder / TRAIN)
        return _report(models, held_out[first], held_out)
    train = write_rows(
        data.train,
        spec.data,
        tokenizer,
        training_budget(spec, models.context),
        folder / TRAIN,
        "spec.data",
        text_bounds(job, spec.data, models.text_rewards, tokenizer),
        hint=None
        if spec.hint is None
        else HintedPrompts(spec.hint, token_budget(models.context, None, sampled).prompt),
        tools=tools,
    )
    if spec.data.value.mixture is not None:
        check_shares(spec.data.value.mixture, train.sources, f"spec.data.{spec.data.member}")
    return _report(models, train, _write_all_held_out(job, data, models, folder, tools))


def _report(
    models: ResolvedModels, train: DatasetReport, held_out: Mapping[str | None, DatasetReport]
) -> PreparationReport:
    return PreparationReport(
        context=models.context,
        train=train,
        validation=held_out.get(None),
        text_rewards=list(models.text_rewards),
        validation_sets={name: report for name, report in held_out.items() if name is not None},
    )


def _write_all_held_out(
    job: AlignmentJob,
    data: JobDatasets,
    models: ResolvedModels,
    folder: Path,
    tools: Sequence[dict[str, Any]] | None,
) -> dict[str | None, DatasetReport]:
    """Write all held-out rows. Return name of the set -> report; None: the rows of validation.data."""
    return {
        rows.name: _write_held_out(job, rows, data.held_out[rows.name], models, folder, tools)
        for rows in job.spec.held_out_rows
    }


def _write_held_out(
    job: AlignmentJob,
    rows: HeldOutRows,
    datasets: Sequence[RowDataset],
    models: ResolvedModels,
    folder: Path,
    tools: Sequence[dict[str, Any]] | None,
) -> DatasetReport:
    """Write a set of held-out rows."""
    rollout = job.spec.effective_rollout
    sampled = None if rollout is None else rollout.sampling.max_tokens
    field = "spec.rollout.sampling.maxTokens"
    if rows.sampling is not None and rows.sampling.max_tokens is not None:
        sampled, field = rows.sampling.max_tokens, rows.field("sampling", "maxTokens")
    rewards = [reward for reward in job.spec.rewards if rows.is_scored_by(reward)]
    roles = {role for reward in rewards for role in reward_roles(reward)}
    text_rewards = {role: reward for role, reward in models.text_rewards.items() if role in roles}
    return write_rows(
        datasets,
        rows.data,
        models.tokenizer,
        token_budget(models.context, rows.data.value.max_tokens, sampled, field),
        folder / validation_file(rows.name),
        rows.field("preset" if rows.is_preset else "data"),
        text_bounds(job, rows.data, text_rewards, models.tokenizer),
        rows.group_by,
        tools=tools,
    )


def _stored_path(folder: Path, draft: Path) -> str:
    return str(folder.relative_to(draft)) if folder.is_relative_to(draft) else str(folder.absolute())


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary sibling folder that is renamed to `folder` at the end; remains of earlier attempts
    are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left_over in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    draft = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    draft.mkdir()
    try:
        yield draft
        for path in draft.rglob("*"):
            if path.is_file() and not path.is_symlink():
                _fsync(path)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
