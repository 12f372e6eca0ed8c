"""Division of the ranks of a job into pods, by default as many in each as its container has GPUs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kubealign.roles import Process
from kubealign.spec.base import MAX_PROCESSES_PER_POD
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJobSpec
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.gpu_limits import gpu_count
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_templates import container_limits, pod_templates, role_section


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
                if first.group not in computed:
                    computed[first.group] = size_of(first)
                size = computed[first.group]
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
    _, section = role_section(spec, process)
    configured: int | None = getattr(section, "processes_per_pod", None)
    if configured is not None:
        return min(configured, process.world_size)
    ranks = _ranks_by_gpus(platform, spec, process)
    return ranks if ranks and process.world_size % ranks == 0 else 1


def pod_layout_errors(
    platform: Platform, spec: AlignmentJobSpec, processes: Iterable[Process]
) -> Iterator[SpecError]:
    """Yield an error for each group whose ranks cannot be divided by the GPUs of their pods."""
    groups = {process.group: process for process in processes if process.world_size > 1}
    for process in groups.values():
        path, section = role_section(spec, process)
        if getattr(section, "processes_per_pod", None) is not None:
            continue
        ranks = _ranks_by_gpus(platform, spec, process)
        if ranks and process.world_size % ranks:
            remedy = (
                f"is not set, and the {ranks} GPUs in the limits of a pod do not divide the "
                f"{process.world_size} ranks: set it, or change the limits"
            )
            yield SpecError(remedy, f"{path}.processesPerPod", format_value(None))


def _ranks_by_gpus(platform: Platform, spec: AlignmentJobSpec, process: Process) -> int:
    """Return the number of ranks for which a pod has GPUs, at most all of a unit; 0: it has none."""
    gpus = gpu_count(container_limits(pod_templates(platform, spec, process)))
    return min(gpus, process.world_size, MAX_PROCESSES_PER_POD)


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
