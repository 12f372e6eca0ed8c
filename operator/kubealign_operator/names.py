"""Names and labels of the objects of a job."""

from kubealign.access.redis_names import job_prefix, user_prefix
from kubealign.labels import APP as APP
from kubealign.labels import ATTEMPT_LABEL as ATTEMPT_LABEL
from kubealign.labels import CREDENTIALS_LABEL as CREDENTIALS_LABEL
from kubealign.labels import DOCUMENT_LABEL as DOCUMENT_LABEL
from kubealign.labels import FIELD_MANAGER as FIELD_MANAGER
from kubealign.labels import GROUP_LABEL as GROUP_LABEL
from kubealign.labels import JOB_LABEL as JOB_LABEL
from kubealign.labels import KUBEALIGN as KUBEALIGN
from kubealign.labels import MAIN_CONTAINER as MAIN_CONTAINER
from kubealign.labels import MANAGED_BY as MANAGED_BY
from kubealign.labels import POD_SETS_ANNOTATION as POD_SETS_ANNOTATION
from kubealign.labels import PROCESS_LABEL as PROCESS_LABEL
from kubealign.labels import PROCESSES_LABEL as PROCESSES_LABEL
from kubealign.labels import ROLE_LABEL as ROLE_LABEL
from kubealign.labels import UID_LABEL as UID_LABEL
from kubealign.labels import UNIT_LABEL as UNIT_LABEL
from kubealign.labels import WORKER_RANK_LABEL as WORKER_RANK_LABEL
from kubealign.process_settings import Role
from kubealign.roles import Process

NATS = "nats"
DRIVER = "driver"

#: Label selector of all objects that belong to jobs.
OWNED_SELECTOR = f"{MANAGED_BY}={KUBEALIGN},{JOB_LABEL}"


def bus() -> Process:
    """Return the job's NATS server as a process."""
    return Process(name=NATS, role=Role.NATS, group=NATS, module="", serves=False)


def pod(job: str, process: str, attempt: int) -> str:
    """Return the name of the pod of one attempt, so that a successor does not wait until its name is free.

    Pod names may have 253 characters; host names, of 63 at most, are those of the processes.

    Args:
        attempt: Number of restarts, as in the pod's label and in status.attempts.
    """
    return f"{job}-{process}-{attempt}"


def peers(job: str) -> str:
    """Return the name of the headless Service and of the NetworkPolicy of all pods."""
    return f"{job}-peers"


def egress(job: str, group: str) -> str:
    """Return the name of the NetworkPolicy that lets the pods of a process group leave the job."""
    return f"{job}-egress-{group}"


def budget(job: str, group: str, pod_size: int, document_generation: int = 1) -> str:
    """Return the name of the PodDisruptionBudget of a group whose pods have so many processes each.

    Args:
        document_generation: Generation of the document that the pods mount.
    """
    name = f"{job}-{group}" if pod_size == 1 else f"{job}-{group}-{pod_size}"
    return name if document_generation == 1 else f"{name}-document-{document_generation}"


def credentials(job: str, generation: int = 1) -> str:
    """Return the name of the Secret with a generation of the job's credentials, which count from 1."""
    return f"{job}-credentials" if generation == 1 else f"{job}-credentials-{generation}"


def config_map(job: str, generation: int = 1) -> str:
    """Return the name of the ConfigMap with a generation of the job's document, which count from 1."""
    return f"{job}-document" if generation == 1 else f"{job}-document-{generation}"


def host(job: str, namespace: str, process: str) -> str:
    """Return the host name under which the job's other pods reach this process."""
    return f"{process}.{peers(job)}.{namespace}.svc"


def workload(job: str, uid: str, unit: str = "") -> str:
    """Return the name of the Kueue Workload of the job.

    Args:
        unit: The additional rollout worker to which the Workload belongs; empty: the job as a whole.
    """
    return f"{job}-{unit}-{uid[:8]}" if unit else f"{job}-{uid[:8]}"


def run_directory(job: str, uid: str, prebuilt_workload: str = "", *, has_copies: bool = False) -> str:
    """Return the name of the run directory.

    It contains the uid, so that a later job of the same name finds no old checkpoints.

    Args:
        prebuilt_workload: Workload that MultiKueue has created for the job. Its name contains the uid of the
            job in the manager cluster: a job that returns to this cluster as a new object finds its
            checkpoints. Another name has no effect.
        has_copies: The job has copies of its checkpoints in object storage. It restores the newest one, which
            another cluster may have made, into an empty run directory, also in a cluster to which it returns.
    """
    own = f"{job}-{uid[:8]}"
    is_of_job = prebuilt_workload.startswith(f"{job}-") and len(prebuilt_workload) == len(own)
    return prebuilt_workload if is_of_job and not has_copies else own


def redis_user(uid: str, cluster_id: str = "") -> str:
    """Return the job's user name in the platform's Redis."""
    return f"{user_prefix(cluster_id)}{uid}"


def redis_prefix(namespace: str, job: str, cluster_id: str = "") -> str:
    """Return the prefix of the job's Redis keys."""
    return job_prefix(namespace, job, cluster_id)


def rollout_selector(uid: str, group: Role, *, several: bool) -> str:
    """Return the label selector of the rollout workers for the scale subresource: one pod for each worker.

    Args:
        group: Group of the pods in which the rollout workers run.
        several: True when a worker consists of several pods, of which the first one is selected.
    """
    first = f",{WORKER_RANK_LABEL}=0" if several else ""
    return f"{UID_LABEL}={uid},{GROUP_LABEL}={group}{first}"
