"""Checkpoints, deadlines and budgets."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import (
    MAX_INT32,
    FilePath,
    JobName,
    ObjectName,
    SpecModel,
    StorageUri,
    ValidationMetric,
    VolumePath,
    require_exactly_one,
)


class RunsVolume(SpecModel):
    """A Kubernetes volume that every pod of the job can write to."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: VolumePath = Field("", description="Folder within the volume; empty: the root.")


class ParentJob(SpecModel):
    """Another AlignmentJob: of the same namespace, or of the same folder of runs on one machine."""

    name: JobName = Field(description="metadata.name of the other job, which must not be running.")


class ParentVolume(SpecModel):
    """The folder of a run in a Kubernetes volume."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: VolumePath = Field(
        min_length=1,
        description="Run directory within the volume, such as runs/sums-6f1f7d0e; it holds job.json and "
        "commits.",
    )


#: Members of a checkpoint source, of which exactly one is set.
PARENT_MEMBERS = ["job", "volume", "path"]
PARENT_EXAMPLE = "job: {name: sums}"


class CheckpointSource(SpecModel):
    """A checkpoint of another run. Exactly one of job, volume and path must be set."""

    job: ParentJob | None = Field(
        None,
        description="Another job, also one that has failed. Its seed, policy, data, algorithm and the ranks, "
        "the adapter and the backend of its trainer and critic must be the same as in this job.",
    )
    volume: ParentVolume | None = Field(
        None, description="In a cluster: the run directory of a job that may no longer exist."
    )
    path: FilePath | None = Field(
        None, description="On one machine: a run directory; relative to the job's file."
    )
    step: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Step of the checkpoint; null: the newest intact one.",
    )

    @model_validator(mode="after")
    def _one(self) -> "CheckpointSource":
        """Check that exactly one run is named."""
        require_exactly_one(self, PARENT_MEMBERS, example=PARENT_EXAMPLE)
        return self


class MetricOrder(StrEnum):
    """Order of the values of a metric, from better to worse."""

    HIGHEST = "Highest"
    LOWEST = "Lowest"


class KeepBest(SpecModel):
    """Checkpoints that are kept because of their validation, beside the newest ones.

    A validation whose value is among the best so far is followed by a checkpoint of its step.
    """

    metric: ValidationMetric = Field(description="A metric under val/, such as val/exact or val/loss.")
    count: int = Field(1, ge=1, le=100, description="Number of best checkpoints to keep.")
    order: MetricOrder = Field(
        MetricOrder.HIGHEST, description="Highest: greater values are better. Lowest: smaller ones are."
    )


class Checkpoint(SpecModel):
    """Checkpoints from which an interrupted job resumes. One is always written at the end."""

    every_steps: int = Field(50, ge=1, le=MAX_INT32, description="Steps between checkpoints.")
    keep: int = Field(2, ge=1, le=100, description="Number of newest checkpoints to keep.")
    keep_best: KeepBest | None = Field(
        None,
        description="Also keep the best checkpoints by a validation metric; needs validation.everySteps. "
        "null: the newest alone.",
    )
    keep_every_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Also keep the checkpoints whose step is a multiple of this number; null: none of them.",
    )
    volume: RunsVolume | None = Field(
        None,
        description="In a cluster: the volume for run directories. On one machine: unused, checkpoints "
        "are in the run directory.",
    )
    uri: StorageUri | None = Field(
        None,
        description="Address in object storage of copies of the newest checkpoints and of the result, such "
        "as s3://bucket/jobs/sums; each job has its own. They are uploaded while training goes on. A job "
        "whose run directory has no checkpoint continues the newest complete copy. Endpoint and credentials "
        "come from the environment of the driver and of the preparation (controlPods). null: no copies.",
    )
    record_batches: bool = Field(
        False,
        description="Record the batch of every step in order, so that `kubealign replay` can train on "
        "the batches again.",
    )
    source: CheckpointSource | None = Field(
        None,
        alias="from",
        description="Checkpoint of another run with which the job starts, in place of the initial weights: "
        "weights, optimiser state and the position in the data. The job's first step is the one after the "
        "checkpoint's, so that each prompt is trained once over both runs. The other run is only read. "
        "null: start at step 1.",
    )


class ManagedBy(StrEnum):
    """kubealign.dev/operator: the operator of this cluster. kueue.x-k8s.io/multikueue: Kueue's MultiKueue,
    which copies the job to a worker cluster, where its operator runs it; the job needs the label
    kueue.x-k8s.io/queue-name.
    """

    OPERATOR = "kubealign.dev/operator"
    MULTIKUEUE = "kueue.x-k8s.io/multikueue"


class Lifecycle(SpecModel):
    """Deadlines, restart and failure budgets."""

    active_deadline_seconds: float | None = Field(
        None,
        gt=0,
        le=MAX_INT32,
        description="Maximum running time of the job before it fails; null: unlimited. In a cluster the time "
        "in a queue or without a node at the start does not count.",
    )
    start_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="In a cluster: time within which the job's pods must all be ready for the first time, "
        "from their creation or their admission by a queue, before the job fails and releases what its "
        "started pods hold; null: unlimited. The time in which only the preparation runs does not count.",
    )
    max_restarts: int = Field(
        10,
        ge=0,
        le=MAX_INT32,
        description="Restarts of crashed processes without progress between them before the job fails: each "
        "new checkpoint starts the count anew. What the cluster does to a process, and full storage, do not "
        "count.",
    )
    max_failed_groups: int = Field(
        16, ge=0, le=MAX_INT32, description="Prompts abandoned after their retries before the job fails."
    )
    grace_period_seconds: float = Field(
        30.0, gt=0, le=86_400, description="Time for a process to shut down gracefully."
    )
    force_delete_lost_pods: bool = Field(
        False,
        description="In a cluster: delete by force, and replace, a pod whose node has not confirmed its end "
        "60 seconds after the grace period. Risk: on a node that is only cut off, the processes of the pod "
        "run on, use its GPUs and still reach the volume. False: the pod is replaced once Kubernetes has "
        "removed it, because its Node object was deleted or has the taint "
        "node.kubernetes.io/out-of-service.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description="In a cluster: time after which a finished job is deleted; null: never.",
    )
