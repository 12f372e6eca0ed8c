"""PodDisruptionBudgets: how many pods of a job voluntary disruptions, such as drains, may take at once.

The budgets are absolute numbers: for a percentage Kubernetes would ask the job's scale subresource, which
counts rollout workers only. They always allow the eviction of one pod, so no drain waits for ever.
https://kubernetes.io/docs/tasks/run-application/configure-pdb/
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import document_label, object_metadata


@dataclass(frozen=True)
class DisruptionBudget:
    """Pods of a group that must stay healthy.

    Attributes:
        pod_size: Number of processes in each of the pods.
        document_generation: Generation of the document that the pods mount; None: any, as nothing that may
            change while the job is suspended affects the budget.
    """

    group: str
    pod_size: int
    min_available: int
    document_generation: int | None = None


def disruption_budgets(
    job: AlignmentJob, processes: Sequence[Process], document_generation: int
) -> Iterator[DisruptionBudget]:
    """Yield the budgets of a job: of the ranks of a group one pod may go at a time, since their successors
    start anew together; of the rollout workers, all above `minReplicas` and one.

    Args:
        processes: First process of each pod of the job.
        document_generation: Generation of the document that new pods mount.
    """
    groups: dict[str, list[Process]] = {}
    for process in processes:
        if process.role_spec.is_worker:
            groups.setdefault(process.group, []).append(process)
    for group, members in groups.items():
        size, per_worker = len(members[0].pod_processes), len({m.rank for m in members})
        generation = None
        if not members[0].elastic:
            minimum = len(members) - 1
        elif group == Role.ROLLOUT and job.spec.own_rollout is not None:
            minimum = (job.spec.own_rollout.min_replicas - 1) * per_worker
            generation = document_generation
        else:
            minimum = 0
        if minimum > 0:
            yield DisruptionBudget(group, size, minimum, generation)


def budget_name(job: str, budget: DisruptionBudget) -> str:
    return names.budget(job, budget.group, budget.pod_size, budget.document_generation or 1)


def disruption_budget(context: RenderContext, budget: DisruptionBudget) -> dict[str, Any]:
    """Build the PodDisruptionBudget. It selects pods of one size, and rollout workers of one document: those
    of a job that was resumed with others have a budget of their own, and a pod with two cannot be evicted.
    """
    match_labels = {names.UID_LABEL: context.uid, names.GROUP_LABEL: budget.group}
    absent = []
    if budget.pod_size > 1:
        match_labels[names.PROCESSES_LABEL] = str(budget.pod_size)
    else:
        absent.append(names.PROCESSES_LABEL)
    if budget.document_generation == 1:
        absent.append(names.DOCUMENT_LABEL)
    elif budget.document_generation is not None:
        match_labels |= document_label(budget.document_generation)
    selector: dict[str, Any] = {"matchLabels": match_labels}
    if absent:
        selector["matchExpressions"] = [{"key": label, "operator": "DoesNotExist"} for label in absent]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": object_metadata(context, budget_name(context.name, budget)),
        "spec": {"minAvailable": budget.min_available, "selector": selector},
    }
