"""What the objects of a job are called, and what they are labelled with."""

from kubealign.labels import APP as APP
from kubealign.labels import ATTEMPT_LABEL as ATTEMPT_LABEL
from kubealign.labels import FIELD_MANAGER as FIELD_MANAGER
from kubealign.labels import GROUP_LABEL as GROUP_LABEL
from kubealign.labels import JOB_LABEL as JOB_LABEL
from kubealign.labels import KUBEALIGN as KUBEALIGN
from kubealign.labels import MAIN as MAIN
from kubealign.labels import MANAGED_BY as MANAGED_BY
from kubealign.labels import PROCESS_LABEL as PROCESS_LABEL
from kubealign.labels import ROLE_LABEL as ROLE_LABEL
from kubealign.labels import UID_LABEL as UID_LABEL
from kubealign.labels import WORKER_RANK_LABEL as WORKER_RANK_LABEL
from kubealign.process import Role
from kubealign.roles import Process

NATS = "nats"
DRIVER = "driver"

#: What a watch of all that belongs to jobs selects.
OWNED_SELECTOR = f"{MANAGED_BY}={KUBEALIGN},{JOB_LABEL}"


def bus() -> Process:
    """The job's NATS server, as a process among the others."""
    return Process(name=NATS, role=Role.NATS, group=NATS, module="", serves=False)


def pod(job: str, process: str) -> str:
    return f"{job}-{process}"


def peers(job: str) -> str:
    """The headless Service, and the NetworkPolicy."""
    return f"{job}-peers"


def credentials(job: str) -> str:
    """The Secret."""
    return f"{job}-credentials"


def document(job: str) -> str:
    """The ConfigMap."""
    return f"{job}-document"


def host(job: str, namespace: str, process: str) -> str:
    """Where the other pods of the job reach this process."""
    return f"{process}.{peers(job)}.{namespace}.svc"


def pod_group(job: str, uid: str) -> str:
    """Of the pods that a queue admits together."""
    return f"{job}-{uid[:8]}"


def run_folder(job: str, uid: str) -> str:
    """In the checkpoint's volume. Another job of the same name does not find this one's commits."""
    return f"{job}-{uid[:8]}"


def redis_user(uid: str) -> str:
    """The job's user of the platform's Redis."""
    return f"kubealign-{uid}"


def redis_prefix(namespace: str, job: str) -> str:
    """What the names of the job's keys begin with."""
    return f"kubealign:{namespace}:{job}:"


def rollout_selector(uid: str, group: Role, *, several: bool) -> str:
    """Of the rollout workers, which run in the pods of this group, for the scale subresource: one pod a
    worker, the first where each has several."""
    first = f",{WORKER_RANK_LABEL}=0" if several else ""
    return f"{UID_LABEL}={uid},{GROUP_LABEL}={group}{first}"
