"""Fields of a job's document with the numbers of workers of its elastic groups. Pure."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from kubealign.client.backends.worker_groups import ENVIRONMENT, ROLLOUT
from kubealign.process_settings import Role
from kubealign.role_specs import role_of_group, teacher_group
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import ReferencePlacement

#: Field of the spec with the number of workers, and the index of its list's entry if it has one.
_Path = tuple[str | int, ...]


def replicas_by_group(job: AlignmentJob) -> dict[str, int]:
    """Return elastic group -> number of workers in the spec, for groups that have processes of their own."""
    return {group: replicas for group, replicas, _ in _groups(job)}


def replicas_patch(
    job: AlignmentJob, document: Mapping[str, Any], group: str, replicas: int
) -> dict[str, Any]:
    """Return the merge patch that sets the number of workers of a group.

    Args:
        document: The job as a document. Lists are replaced as a whole by a merge patch.

    Raises:
        LookupError: The job has no such group; the message names those that it has.
    """
    section, *rest = _path_of(job, group)
    spec = document.get("spec") or {}
    if not any(isinstance(part, int) for part in rest):
        return {"spec": _nested((section, *rest), replicas)}
    entries = copy.deepcopy(spec[section])
    entries[rest[0]]["replicas"] = replicas
    return {"spec": {section: entries}}


def replicas_operations(job: AlignmentJob, group: str, replicas: int) -> list[dict[str, Any]]:
    """Return the operations of a JSON patch that set the number of workers of a group.

    Unlike a merge patch they change no other entry of a list.

    Raises:
        LookupError: The job has no such group; the message names those that it has.
    """
    path = _path_of(job, group)
    pointer = "/".join(("", "spec", *map(str, path)))
    change = {"op": "add", "path": pointer, "value": replicas}
    if not any(isinstance(part, int) for part in path):
        return [change]
    entry = pointer.rpartition("/")[0]
    named = group.partition("-")[2]
    return [{"op": "test", "path": f"{entry}/name", "value": named}, change]


def _path_of(job: AlignmentJob, group: str) -> _Path:
    paths = {name: path for name, _, path in _groups(job)}
    if group not in paths:
        raise LookupError(f"has no workers {group!r} to scale; it has {', '.join(paths) or 'none'}")
    return paths[group]


def without_replicas(job: AlignmentJob, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a complete spec document without the numbers of workers."""
    copied = copy.deepcopy(dict(spec))
    for _, _, path in _groups(job):
        value: Any = copied
        for part in path[:-1]:
            value = value[part]
        value.pop(path[-1])
    return copied


def _groups(job: AlignmentJob) -> Iterator[tuple[str, int, _Path]]:
    spec = job.spec
    if spec.own_rollout is not None:
        yield ROLLOUT, spec.rollout.replicas, ("rollout", "replicas")
    if spec.environment_replicas:
        yield ENVIRONMENT, spec.environment_replicas, ("rollout", "environmentReplicas")
    for index, reward in enumerate(spec.rewards):
        if reward.has_processes:
            yield f"{Role.REWARD}-{reward.name}", reward.replicas, ("rewards", index, "replicas")
    if spec.reference is not None and spec.reference.placement is ReferencePlacement.OWN:
        yield Role.REFERENCE.value, spec.reference.replicas, ("reference", "replicas")
    if spec.teacher is not None:
        yield Role.TEACHER.value, spec.teacher.replicas, ("teacher", "replicas")
    for index, teacher in enumerate(spec.teachers):
        yield teacher_group(teacher.name), teacher.replicas, ("teachers", index, "replicas")


def _nested(path: _Path, value: Any) -> dict[str, Any]:
    first, *rest = path
    return {str(first): _nested(tuple(rest), value) if rest else value}


def describe_workers(group: str, replicas: int) -> str:
    """Return the number of a group's workers in words, such as "3 rollout workers"."""
    workers = f"{role_of_group(group)} worker" + ("" if replicas == 1 else "s")
    named = "" if role_of_group(group) == group else f" of {group}"
    return f"{replicas} {workers}{named}"
