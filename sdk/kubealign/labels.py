"""What the objects of a job are labelled with in a cluster: the operator writes it, clients search by it."""

from kubealign.spec.job import GROUP

MANAGED_BY = "app.kubernetes.io/managed-by"
APP = "app.kubernetes.io/name"
KUBEALIGN = "kubealign"
JOB_LABEL = f"{GROUP}/job"
UID_LABEL = f"{GROUP}/job-uid"
GROUP_LABEL = f"{GROUP}/group"
PROCESS_LABEL = f"{GROUP}/process"
ROLE_LABEL = f"{GROUP}/role"
ATTEMPT_LABEL = f"{GROUP}/attempt"
#: Of a rollout worker that has several pods: which of them, from 0. Others have no such label.
WORKER_RANK_LABEL = f"{GROUP}/worker-rank"

#: The container of every pod of a job.
MAIN = "main"
#: Who is named as the writer of a job's fields.
FIELD_MANAGER = "kubealign"
