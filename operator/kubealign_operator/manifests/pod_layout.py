"""Division of the ranks of a job into pods, by default as many in each as its container has GPUs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kubealign.roles import Process, roles
from kubealign.spec.base import MAX_PROCESSES_PER_POD
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.gpu_limits import gpu_count
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_templates import container_limits, pod_templates


def arrange_pods(
    processes: Sequence[Process], pods: Sequence[PodView], size_of: Callable[[Process], int]
) -> tuple[Process, ...]:
    """Return the first process of each pod, with the other ranks of the pod as its companions.

    Args:
        processes: All processes of the job, each by itself; the ranks of a unit in order.
        pods: Pods of the job. A unit that has some keeps their size, so that a change of a template does not
            replace pods that run.
        size_of: Returns the number of ranks for each pod of a process's unit.
    """
    sizes = _sizes_of_pods(pods)
    computed: dict[str, int] = {}
    arranged: list[Process] = []
    for unit in _units(processes):
        first = unit[0]
        size = 1
        if len(unit) > 1:
            size = max((sizes[process.name] for process in unit if process.name in sizes), default=0)
            if not size:
                size = computed.setdefault(first.group, size_of(first))
        for start in range(0, len(unit), size):
            leader, *companions = unit[start : start + size]
            arranged.append(replace(leader, companions=tuple(companions)))
    return tuple(arranged)


def processes_per_pod(platform: Platform, spec: AlignmentJobSpec, process: Process) -> int:
    """Return the number of ranks in each pod of a unit. 1 where the GPUs do not divide the ranks: an error of
    the spec, which `pod_layout_errors` yields.
    """
    if process.world_size == 1:
        return 1
    configured = _configured(spec, process)
    if configured is not None:
        return min(configured, process.world_size)
    gpus = gpu_count(container_limits(pod_templates(platform, spec, process)))
    gpus = min(gpus, process.world_size, MAX_PROCESSES_PER_POD)
    return gpus if gpus and process.world_size % gpus == 0 else 1


def pod_layout_errors(platform: Platform, job: AlignmentJob) -> Iterator[SpecError]:
    """Yield an error for each group whose ranks cannot be divided by the GPUs of their pods."""
    seen: set[str] = set()
    for process in roles(job):
        if process.world_size == 1 or process.group in seen:
            continue
        seen.add(process.group)
        gpus = gpu_count(container_limits(pod_templates(platform, job.spec, process)))
        if _configured(job.spec, process) is not None or not gpus or gpus >= process.world_size:
            continue
        if process.world_size % gpus:
            remedy = (
                f"is not set, and the {gpus} GPUs in the limits of a pod do not divide the "
                f"{process.world_size} ranks: set it, or change the limits"
            )
            yield SpecError(remedy, f"{_section_path(job.spec, process)}.processesPerPod", format_value(None))


def pod_size(pod: PodView) -> int:
    """Return the number of processes that a pod runs, from its label."""
    label = pod.labels.get(names.PROCESSES_LABEL, "1")
    return max(1, int(label)) if label.isdecimal() else 1


def pod_size_label(process: Process) -> Mapping[str, str]:
    """Return the label with the number of processes of a pod; empty for a pod with one process."""
    return {names.PROCESSES_LABEL: str(len(process.pod_processes))} if process.companions else {}


def _units(processes: Sequence[Process]) -> Iterator[Sequence[Process]]:
    units: dict[str, list[Process]] = {}
    for process in processes:
        units.setdefault(process.unit, []).append(process)
    return iter(units.values())


def _sizes_of_pods(pods: Sequence[PodView]) -> Mapping[str, int]:
    """Return the number of processes in the newest pod of each first process, leftovers excluded."""
    sizes: dict[str, int] = {}
    for pod in sorted(pods, key=pod_state.attempt_of):
        if not pod_state.is_leftover(pod):
            sizes[pod.labels.get(names.PROCESS_LABEL, "")] = pod_size(pod)
    return sizes


def _configured(spec: AlignmentJobSpec, process: Process) -> int | None:
    """Return `processesPerPod` of the section that describes the process; None: it is not set."""
    if process.reward is not None:
        rewards = (reward.processes_per_pod for reward in spec.rewards if reward.name == process.reward)
        return next(rewards, None)
    if process.teacher is not None:
        return next(each.processes_per_pod for each in spec.teachers if each.name == process.teacher)
    section = process.role_spec.section
    value: int | None = (
        None if section is None else getattr(getattr(spec, section), "processes_per_pod", None)
    )
    return value


def _section_path(spec: AlignmentJobSpec, process: Process) -> str:
    """Return the path of the section that describes the process."""
    if process.reward is not None:
        position = next(i for i, reward in enumerate(spec.rewards) if reward.name == process.reward)
        return f"spec.rewards[{position}]"
    if process.teacher is not None:
        position = next(i for i, each in enumerate(spec.teachers) if each.name == process.teacher)
        return f"spec.teachers[{position}]"
    return f"spec.{process.role_spec.section}"
