"""Dependencies between jobs: models and rows that are results of other jobs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from kubealign.spec.algorithms import Algorithm, Makes
from kubealign.spec.algorithms.method import Method
from kubealign.spec.data import Data, DataSource
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.fields import allowed, model_of
from kubealign.spec.job import AlignmentJob
from kubealign.spec.models import Model
from kubealign.spec.paths import Place, dotted


def dependencies(job: AlignmentJob) -> set[str]:
    """Return the names of the jobs whose results the job reads."""
    return {name for _, name in references(job)}


def order(jobs: Sequence[AlignmentJob], finished: Callable[[str], bool]) -> list[AlignmentJob]:
    """Sort the jobs so that each follows its dependencies; otherwise keep the given order.

    Args:
        finished: Returns True if a job that is not in `jobs` has a result.

    Raises:
        SpecErrors: Jobs that wait for each other, or results that no job makes.
    """
    names = {job.name for job in jobs}
    errors = [
        _unknown(job, path, name, names)
        for job in jobs
        for path, name in references(job)
        if name not in names and not finished(name)
    ]
    by_name = {job.name: job for job in jobs}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for job in jobs:
        sorter.add(job.name, *sorted(dependencies(job) & names))
    try:
        sorter.prepare()
    except CycleError as error:
        errors.append(_cycle([by_name[name] for name in reversed(error.args[1])]))
    if errors:
        raise SpecErrors(errors)
    return [by_name[name] for name in _stable(sorter, [job.name for job in jobs])]


def _stable(sorter: "TopologicalSorter[str]", names: list[str]) -> Iterator[str]:
    """Yield names in topological order; among the ready jobs always the first one in the file."""
    ready: set[str] = set()
    while sorter.is_active():
        ready |= set(sorter.get_ready())
        following = min(ready, key=names.index)
        ready.remove(following)
        sorter.done(following)
        yield following


def references(job: AlignmentJob) -> Iterator[tuple[Place, str]]:
    """Yield (path, name) of every other job whose result the job reads."""
    for path, model in models(job):
        if model.job is not None:
            yield (*path, "job", "name"), model.job.name
    for path, source in sources(job):
        if source.job is not None:
            yield (*path, "job", "name"), source.job.name


def models(job: AlignmentJob) -> Iterator[tuple[Place, Model]]:
    """Yield (path, model) of every model that the document names."""
    spec = job.spec
    yield ("spec", "policy", "model"), spec.policy.model
    if spec.critic is not None and spec.critic.model is not None:
        yield ("spec", "critic", "model"), spec.critic.model
    if spec.reference is not None and spec.reference.model is not None:
        yield ("spec", "reference", "model"), spec.reference.model
    if spec.teacher is not None:
        yield ("spec", "teacher", "model"), spec.teacher.model
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None:
            yield ("spec", "rewards", index, "model"), reward.model
        for member, model in enumerate(reward.ensemble.models if reward.ensemble else []):
            yield ("spec", "rewards", index, "ensemble", "models", member), model


def sources(job: AlignmentJob) -> Iterator[tuple[Place, DataSource]]:
    """Yield (path, source) of every data set that the document names."""
    sets: list[tuple[Place, Data]] = [(("spec", "data"), job.spec.data)]
    if job.spec.validation is not None:
        sets.append((("spec", "validation", "data"), job.spec.validation.data))
    for path, data in sets:
        yield (*path, data.member, "source"), data.value.source


def mismatches(jobs: Sequence[AlignmentJob]) -> Iterator[tuple[AlignmentJob, Place, str, str]]:
    """Yield (job, path, value, message) of every reference to a result of the wrong kind."""
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        for path, name in references(job):
            if name not in by_name:
                continue
            message = misuse(path, name, by_name[name].spec.algorithm.value.makes)
            if message is not None:
                yield job, path, name, message


def misuse(place: Place, name: str, makes: Makes) -> str | None:
    """Return the error if a job with this kind of result must not be named at this path; None: the kind is
    accepted.
    """
    accepted = _wanted(place)
    if makes in accepted:
        return None
    return f"must be a job that makes {' or '.join(_A[kind] for kind in accepted)}: {name} makes {_A[makes]}"


def made_by(algorithm: Mapping[str, Any]) -> Makes | None:
    """Return the kind of result of a job from its raw spec.algorithm. None: the algorithm is missing or
    unknown.
    """
    for name, entry in allowed(Algorithm).items():
        method = model_of(entry.annotation)
        if name in algorithm and method is not None and issubclass(method, Method):
            return method.makes
    return None


#: Kinds of result with their articles.
_A = {Makes.POLICY: "a policy", Makes.REWARD_MODEL: "a reward model", Makes.DATA: "data"}


def _wanted(path: Place) -> tuple[Makes, ...]:
    """Return the kinds of result that are accepted at this path."""
    if "source" in path:
        return (Makes.DATA,)
    if path[1] == "rewards":
        return (Makes.REWARD_MODEL,)
    return (Makes.POLICY, Makes.REWARD_MODEL) if path[1] == "critic" else (Makes.POLICY,)


def _unknown(job: AlignmentJob, path: Place, name: str, names: set[str]) -> SpecError:
    """Build the error of a reference to a job that does not exist."""
    others = ", ".join(sorted(names - {job.name})) or "no other"
    message = f"is not a finished job and not in this file, which has {others}: run {name} first, or add it"
    return SpecError(message, dotted(path), name, job=job.name)


def _cycle(jobs: list[AlignmentJob]) -> SpecError:
    """Build the error of a dependency cycle.

    Args:
        jobs: Each job depends on the next one; the last job is the first again.
    """
    first, needed = jobs[0], jobs[1].name
    path = next(path for path, name in references(first) if name == needed)
    if len(jobs) == 2:
        message = "waits for its own result: name another job or another model"
    else:
        message = f"waits for itself: {' needs '.join(job.name for job in jobs)}"
    return SpecError(message, dotted(path), needed, job=first.name)
