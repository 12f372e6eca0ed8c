"""Dependencies between jobs: models and rows that are results of other jobs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from kubealign.role_specs import ROLE_SPECS
from kubealign.spec.algorithms import Algorithm, AlgorithmSpec, ResultKind, algorithm_specs
from kubealign.spec.algorithms.evaluation import CHECKPOINTS_PATH
from kubealign.spec.base import field_alias
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import DocumentPath, format_path
from kubealign.spec.sections.data import Data, DataSource
from kubealign.spec.sections.models import Model


def dependency_names(job: AlignmentJob) -> set[str]:
    """Return the names of the jobs whose results the job reads."""
    return {name for _, name in result_references(job)}


def parent_name(job: AlignmentJob) -> str | None:
    """Return the name of the job from whose checkpoint the job starts; None: it names none."""
    source = job.spec.checkpoint.source
    return None if source is None or source.job is None else source.job.name


def order_by_dependencies(
    jobs: Sequence[AlignmentJob], finished: Callable[[str], bool]
) -> list[AlignmentJob]:
    """Sort the jobs so that each follows its dependencies and the job from whose checkpoint it starts;
    otherwise keep the given order.

    Args:
        finished: Returns True if a job that is not in `jobs` has a result.

    Raises:
        SpecErrors: Jobs that wait for each other, or results that no job makes.
    """
    names = {job.name for job in jobs}
    errors = [
        _unknown_job_error(job, path, name, names)
        for job in jobs
        for path, name in result_references(job)
        if name not in names and not finished(name)
    ]
    by_name = {job.name: job for job in jobs}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for job in jobs:
        sorter.add(job.name, *sorted({name for _, name in predecessors(job)} & names))
    try:
        sorter.prepare()
    except CycleError as error:
        errors.append(_cycle_error([by_name[name] for name in reversed(error.args[1])]))
    if errors:
        raise SpecErrors(errors)
    return [by_name[name] for name in _in_file_order(sorter, [job.name for job in jobs])]


def _in_file_order(sorter: "TopologicalSorter[str]", names: list[str]) -> Iterator[str]:
    """Yield names in topological order; among the ready jobs always the first one in the file."""
    ready: set[str] = set()
    while sorter.is_active():
        ready |= set(sorter.get_ready())
        following = min(ready, key=names.index)
        ready.remove(following)
        sorter.done(following)
        yield following


def result_references(job: AlignmentJob) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, name) of every other job whose result the job reads."""
    for path, model in named_models(job):
        if model.job is not None:
            yield (*path, "job", "name"), model.job.name
    for path, source in named_sources(job):
        if source.job is not None:
            yield (*path, "job", "name"), source.job.name


def predecessors(job: AlignmentJob) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, name) of every other job that must have ended before this one starts."""
    yield from result_references(job)
    parent = parent_name(job)
    if parent is not None:
        yield ("spec", "checkpoint", "from", "job", "name"), parent


def named_models(job: AlignmentJob) -> Iterator[tuple[DocumentPath, Model]]:
    """Yield (path, model) of every model that the document names."""
    spec = job.spec
    for section in (role.model for role in ROLE_SPECS.values() if role.model is not None):
        entry = getattr(spec, section)
        if entry is not None and entry.model is not None:
            yield ("spec", section, "model"), entry.model
    for index, teacher in enumerate(spec.teachers):
        yield ("spec", "teachers", index, "model"), teacher.model
    if spec.algorithm.evaluate is not None:
        for index, _, model in spec.algorithm.evaluate.numbered_models():
            yield ("spec", *CHECKPOINTS_PATH, index, "model"), model
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None:
            yield ("spec", "rewards", index, "model"), reward.model
        for member, model in enumerate(reward.ensemble.models if reward.ensemble else []):
            yield ("spec", "rewards", index, "ensemble", "models", member), model


def named_sources(job: AlignmentJob) -> Iterator[tuple[DocumentPath, DataSource]]:
    """Yield (path, source) of every source of rows that the document names."""
    sets: list[tuple[DocumentPath, Data]] = [(("data", job.spec.data.member), job.spec.data)]
    sets += [(rows.rows_path, rows.data) for rows in job.spec.held_out_rows]
    for path, data in sets:
        rows = data.value
        if rows.source is not None:
            yield ("spec", *path, "source"), rows.source
        for index, entry in enumerate(rows.mixture or ()):
            yield ("spec", *path, "mixture", index, "source"), entry.source


def result_kind_errors(jobs: Sequence[AlignmentJob]) -> Iterator[tuple[AlignmentJob, DocumentPath, str, str]]:
    """Yield (job, path, value, message) of every reference to a result of the wrong kind."""
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        for path, name in result_references(job):
            if name not in by_name:
                continue
            message = result_kind_error(path, name, by_name[name].spec.algorithm.value.makes)
            if message is not None:
                yield job, path, name, message


def result_kind_error(path: DocumentPath, name: str, kind: ResultKind) -> str | None:
    """Return the error of a result kind at this path; None: the kind is accepted."""
    accepted = _accepted_kinds(path)
    if kind in accepted:
        return None
    expected = " or ".join(_WITH_ARTICLE[each] for each in accepted)
    return f"must be a job that makes {expected}: {name} makes {_WITH_ARTICLE[kind]}"


def result_kind_of(algorithm: Mapping[str, Any]) -> ResultKind | None:
    """Return the kind of result of a job from its raw spec.algorithm.

    None: the algorithm is missing or unknown.
    """
    spec = algorithm_class_of(algorithm)
    return None if spec is None else spec.makes


def algorithm_class_of(algorithm: Mapping[str, Any]) -> type[AlgorithmSpec] | None:
    """Return the model of a job's algorithm from its raw spec.algorithm; None: it is missing or unknown."""
    for name, spec in algorithm_specs().items():
        if field_alias(Algorithm, name) in algorithm:
            return spec
    return None


#: Kinds of result with their articles.
_WITH_ARTICLE = {
    ResultKind.POLICY: "a policy",
    ResultKind.REWARD_MODEL: "a reward model",
    ResultKind.DATA: "data",
    ResultKind.METRICS: "metrics",
}


def _accepted_kinds(path: DocumentPath) -> tuple[ResultKind, ...]:
    """Return the kinds of result that are accepted at this path."""
    if "source" in path:
        return (ResultKind.DATA,)
    if path[1] == "rewards":
        return (ResultKind.REWARD_MODEL,)
    return (ResultKind.POLICY, ResultKind.REWARD_MODEL) if path[1] == "critic" else (ResultKind.POLICY,)


def _unknown_job_error(job: AlignmentJob, path: DocumentPath, name: str, names: set[str]) -> SpecError:
    """Build the error of a reference to a job that does not exist."""
    others = ", ".join(sorted(names - {job.name})) or "no other"
    message = f"is not a finished job and not in this file, which has {others}: run {name} first, or add it"
    return SpecError(message, format_path(path), name, job=job.name)


def _cycle_error(jobs: list[AlignmentJob]) -> SpecError:
    """Build the error of a dependency cycle.

    Args:
        jobs: Each job depends on the next one; the last job is the first again.
    """
    first, needed = jobs[0], jobs[1].name
    path = next(path for path, name in predecessors(first) if name == needed)
    if len(jobs) == 2:
        message = "waits for its own result: name another job or another model"
    else:
        message = f"waits for itself: {' needs '.join(job.name for job in jobs)}"
    return SpecError(message, format_path(path), needed, job=first.name)
