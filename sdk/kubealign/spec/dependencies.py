"""Jobs whose models or rows are the results of other jobs: who waits for whom."""

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
    """The names of the jobs whose results this one reads."""
    return {name for _, name in references(job)}


def order(jobs: Sequence[AlignmentJob], finished: Callable[[str], bool]) -> list[AlignmentJob]:
    """The jobs, each after those that it depends on, else as they came.

    `finished` says whether a job that is not among them has a result. Raises SpecErrors for jobs that wait
    for one another, and for results that nobody makes.
    """
    names = {job.name for job in jobs}
    errors = [
        _unknown(job, place, name, names)
        for job in jobs
        for place, name in references(job)
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
    """Of the jobs that could come next, always the one that came first in the file."""
    ready: set[str] = set()
    while sorter.is_active():
        ready |= set(sorter.get_ready())
        following = min(ready, key=names.index)
        ready.remove(following)
        sorter.done(following)
        yield following


def references(job: AlignmentJob) -> Iterator[tuple[Place, str]]:
    """(place, name) of every other job whose result this one reads."""
    for place, model in models(job):
        if model.job is not None:
            yield (*place, "job", "name"), model.job.name
    for place, source in sources(job):
        if source.job is not None:
            yield (*place, "job", "name"), source.job.name


def models(job: AlignmentJob) -> Iterator[tuple[Place, Model]]:
    """(place, model) of every model that the document names."""
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
    """(place, source) of every data set that the document names."""
    sets: list[tuple[Place, Data]] = [(("spec", "data"), job.spec.data)]
    if job.spec.validation is not None:
        sets.append((("spec", "validation", "data"), job.spec.validation.data))
    for place, data in sets:
        yield (*place, data.member, "source"), data.value.source


def mismatches(jobs: Sequence[AlignmentJob]) -> Iterator[tuple[AlignmentJob, Place, str, str]]:
    """(job, place, held, message) of every result that is used as what it is not."""
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        for place, name in references(job):
            if name not in by_name:
                continue
            message = misuse(place, name, by_name[name].spec.algorithm.value.makes)
            if message is not None:
                yield job, place, name, message


def misuse(place: Place, name: str, makes: Makes) -> str | None:
    """Why the result of this job, which makes that, cannot stand at this place; None: it can."""
    wanted = _wanted(place)
    if makes in wanted:
        return None
    return f"must be a job that makes {' or '.join(_A[kind] for kind in wanted)}: {name} makes {_A[makes]}"


def made_by(algorithm: Mapping[str, Any]) -> Makes | None:
    """What a job makes whose spec.algorithm is this, as it stands in a document. None: it names no algorithm
    that is known."""
    for name, entry in allowed(Algorithm).items():
        method = model_of(entry.annotation)
        if name in algorithm and method is not None and issubclass(method, Method):
            return method.makes
    return None


#: What jobs make, with an article.
_A = {Makes.POLICY: "a policy", Makes.REWARD_MODEL: "a reward model", Makes.DATA: "data"}


def _wanted(place: Place) -> tuple[Makes, ...]:
    """What the job named at this place may make."""
    if "source" in place:
        return (Makes.DATA,)
    if place[1] == "rewards":
        return (Makes.REWARD_MODEL,)
    return (Makes.POLICY, Makes.REWARD_MODEL) if place[1] == "critic" else (Makes.POLICY,)


def _unknown(job: AlignmentJob, place: Place, name: str, names: set[str]) -> SpecError:
    others = ", ".join(sorted(names - {job.name})) or "no other"
    message = f"is no finished job and not in this file, which has {others}: run {name} first, or add it"
    return SpecError(message, dotted(place), name, job=job.name)


def _cycle(jobs: list[AlignmentJob]) -> SpecError:
    """`jobs`: each depends on the next, the last is the first again."""
    first, needed = jobs[0], jobs[1].name
    place = next(place for place, name in references(first) if name == needed)
    if len(jobs) == 2:
        message = "waits for its own result: name another job or another model"
    else:
        message = f"waits for itself: {' needs '.join(job.name for job in jobs)}"
    return SpecError(message, dotted(place), needed, job=first.name)
