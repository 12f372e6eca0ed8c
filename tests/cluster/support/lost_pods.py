"""Pods of a job that a test deletes while the job runs."""

from .tenant import Tenant


def lose_pod(tenant: Tenant, job: str, process: str) -> None:
    """Delete a pod, and wait until it is replaced and the job makes progress."""
    [before] = pods_of(tenant, job, process)
    tenant.kubectl("delete", before, "--wait=false")
    tenant.until(
        lambda: len(pods := pods_of(tenant, job, process)) == 1 and pods != [before],
        f"another pod than {before}",
        180,
    )
    [after] = pods_of(tenant, job, process)
    tenant.control_plane.kubectl.wait_for(after, "condition=Ready", namespace=tenant.namespace, seconds=180)
    tenant.until_beyond(job, tenant.step(job), f"after {before} was deleted")


def pods_of(tenant: Tenant, job: str, process: str) -> list[str]:
    """Return pod/NAME of the pods of a process, whose names contain the attempt."""
    selector = f"kubealign.dev/job={job},kubealign.dev/process={process}"
    return tenant.kubectl("get", "pods", "-l", selector, "-o", "name").split()
