"""Kubernetes labels of a job's objects, written by the operator and used as selectors by clients, and the
annotations by which clients request a retry or new credentials.
"""

from kubealign.spec.job import GROUP

MANAGED_BY = "app.kubernetes.io/managed-by"
APP = "app.kubernetes.io/name"
KUBEALIGN = "kubealign"
JOB_LABEL = f"{GROUP}/job"
UID_LABEL = f"{GROUP}/job-uid"
#: reportingController of the operator's events.
EVENT_CONTROLLER = f"{GROUP}/operator"
GROUP_LABEL = f"{GROUP}/group"
PROCESS_LABEL = f"{GROUP}/process"
ROLE_LABEL = f"{GROUP}/role"
ATTEMPT_LABEL = f"{GROUP}/attempt"
#: Generation of the credentials that a pod mounts; absent on pods of earlier releases, which mount the first.
CREDENTIALS_LABEL = f"{GROUP}/credentials-generation"
#: Generation of the job's document that a pod mounts; absent on pods that mount the first.
DOCUMENT_LABEL = f"{GROUP}/document-generation"
#: Rank of a pod in a rollout worker with several pods, from 0; absent on other pods.
WORKER_RANK_LABEL = f"{GROUP}/worker-rank"
#: Number of processes in a pod that has several, the first of which is in PROCESS_LABEL.
PROCESSES_LABEL = f"{GROUP}/processes"
#: Annotation of a job that requests a retry after a failure. Each new value is one retry.
RETRY_ANNOTATION = f"{GROUP}/retry"
#: Annotation of a job that requests new credentials. Each new value is one renewal.
RENEW_CREDENTIALS_ANNOTATION = f"{GROUP}/renew-credentials"
#: Uid of the job whose responses a person has labelled, on the ConfigMap that holds the label.
LABELLED_JOB_LABEL = f"{GROUP}/labelled-job"
#: Unit of processes for which a Kueue Workload asks quota; absent: the job as a whole.
UNIT_LABEL = f"{GROUP}/unit"
#: Digest of the pod sets, the queue and the priority of a Kueue Workload.
POD_SETS_ANNOTATION = f"{GROUP}/pod-sets"
#: Kueue's LocalQueue that admits a job.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: Kueue's WorkloadPriorityClass of a job.
QUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
#: Workload that Kueue has created for a job of another cluster, in place of one that the operator creates.
PREBUILT_WORKLOAD_LABEL = "kueue.x-k8s.io/prebuilt-workload-name"

#: Name of the container of every pod of a job.
MAIN_CONTAINER = "main"
#: Field manager of changes to a job.
FIELD_MANAGER = "kubealign"
