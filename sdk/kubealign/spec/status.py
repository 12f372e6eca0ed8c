"""The `status` of an AlignmentJob in a cluster, written by the operator."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kubealign.spec.base import list_map_schema


class _StatusModel(BaseModel):
    """Base class of status models. Unknown fields, which a newer operator may write, are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class JobPhase(StrEnum):
    """Succeeded is final, Failed until a retry is requested."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        """True if the job has finished. It runs again only after a failure, and only by a retry."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class ConditionStatus(StrEnum):
    """Status of a condition in Kubernetes notation."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_StatusModel):
    """A condition of the job, with the time and reason of its last transition."""

    type: str = Field(max_length=316, description="Accepted, DependenciesReady, Ready, Complete, Failed ...")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    reason: str = Field(max_length=1024, description="Reason of the last transition, one CamelCase word.")
    message: str = Field("", max_length=32768, description="Explanation of the last transition.")
    last_transition_time: datetime = Field(description="Time of the last change of `status`.")
    observed_generation: int | None = Field(
        None, description="The metadata.generation to which the condition refers."
    )


class RoleStatus(_StatusModel):
    """Status of the processes of one group."""

    name: str = Field(max_length=63, description="prepare, trainer, critic, reference, reward-NAME, ...")
    replicas: int = Field(description="Desired number of processes; for rollout, the number of workers.")
    ready: int = Field(description="Number of processes that are ready or completed.")


class ResultLocation(_StatusModel):
    """A folder in a volume, such as the job's result in Hugging Face layout."""

    claim_name: str = Field(max_length=253, description="Name of the PersistentVolumeClaim.")
    # Longer than a volume path of the spec, since the run directory's path is appended.
    path: str = Field(max_length=2048, description="Folder within the volume.")


class DependencyResult(ResultLocation):
    """Location of another job's result, as resolved when this job started."""

    name: str = Field(max_length=63, description="metadata.name of the other job.")


class CredentialsStatus(_StatusModel):
    """Current credentials of the job: certificates and passwords of one generation in one Secret."""

    secret_name: str = Field(max_length=253, description="Name of the Secret.")
    generation: int = Field(
        description="Number of the generation, from 1. Pods of earlier ones are replaced."
    )
    issued_at: datetime | None = Field(
        None, description="Start of the lifetime; null: issued by an earlier release."
    )
    expires_at: datetime | None = Field(
        None,
        description="Time from which the certificates may be invalid; they are renewed after two thirds of "
        "their lifetime. null: issued by an earlier release.",
    )
    renewal_request: str | None = Field(
        None,
        max_length=256,
        description="Value of the annotation kubealign.dev/renew-credentials that was last acted on.",
    )


class DocumentStatus(_StatusModel):
    """Current document of the job: the ConfigMap from which the processes read their job."""

    generation: int = Field(
        description="Number of the generation, from 1. A resume after a change of a field that the processes "
        "read makes the next one."
    )
    digest: str = Field(
        max_length=64, description="Digest of the fields that may change while the job is suspended."
    )


class StartTurnStatus(_StatusModel):
    """Turn of the job to start, in a cluster whose jobs start one at a time."""

    waiting_since: datetime | None = Field(
        None, description="Time since which the job waits for its turn; null: it does not wait."
    )
    held_since: datetime | None = Field(
        None, description="Start of the turn in which the job's pods are created; null: it has none now."
    )
    ended_at: datetime | None = Field(
        None,
        description="Time at which all pods that the job needs had a node. It takes no other turn until it "
        "is suspended or retried.",
    )
    lost: str | None = Field(
        None,
        max_length=2048,
        description="Reason for which the last turn was lost: the pods that had no node, and why.",
    )


class AlignmentJobStatus(_StatusModel):
    """Observed state of a job, written by the operator. Every field may be missing."""

    observed_generation: int | None = Field(
        None, description="The metadata.generation that the operator has processed."
    )
    phase: JobPhase | None = Field(None, description="Phase of the job's lifecycle.")
    message: str | None = Field(
        None, max_length=4096, description="Reason for which the job waits or failed."
    )
    step: int | None = Field(None, description="The last completed step.")
    max_steps: int | None = Field(
        None, description="Total number of steps; null: not known before the data is prepared."
    )
    reward: float | None = Field(None, description="Mean reward of the last step.")
    kl: float | None = Field(
        None, description="KL divergence from the reference at the last step, in nats per token."
    )
    weight_version: int | None = Field(None, description="Weight version of the rollout workers.")
    image: str | None = Field(
        None,
        max_length=1024,
        description="Image of the job's processes, unless a pod template names another: that of the platform "
        "when the job started or was retried. An upgrade of the platform does not change it.",
    )
    start_time: datetime | None = Field(None, description="Time at which the job first left Pending.")
    completion_time: datetime | None = Field(None, description="Time at which the job succeeded or failed.")
    active_since: datetime | None = Field(
        None,
        description="Start of the current active period; null while suspended or finished, and while pods "
        "wait for a queue or a node at the start.",
    )
    starting_since: datetime | None = Field(
        None,
        description="Time since which pods of the starting job have not all started; null: all have, or a "
        "queue has not admitted them.",
    )
    active_seconds: float | None = Field(
        None, description="Total duration of earlier active periods in seconds."
    )
    restarts_since_step: int | None = Field(
        None,
        description="Step at which the count of `restarts` began anew, because the job had made progress.",
    )
    restarts: int | None = Field(
        None,
        description="Restarts since the last progress, the start or the last retry, limited by "
        "lifecycle.maxRestarts.",
    )
    retry: str | None = Field(
        None,
        max_length=256,
        description="Value of the annotation kubealign.dev/retry that was last acted on.",
    )
    attempts: dict[str, int] | None = Field(
        None,
        max_length=2048,
        description="Number of restarts of each group of ranks and of each other process.",
    )
    dependencies: list[DependencyResult] | None = Field(
        None,
        max_length=64,
        json_schema_extra=list_map_schema("name"),
        description="Results of other jobs that this job reads; recorded because those jobs may be "
        "deleted meanwhile.",
    )
    checkpoint_source: ResultLocation | None = Field(
        None,
        description="Run directory of the job from whose checkpoint this job starts; recorded because that "
        "job may be deleted meanwhile.",
    )
    roles: list[RoleStatus] | None = Field(
        None,
        max_length=64,
        json_schema_extra=list_map_schema("name"),
        description="Status of the processes by group.",
    )
    rollout_replicas: int | None = Field(
        None, description="Number of existing rollout workers; for kubectl scale."
    )
    selector: str | None = Field(
        None, max_length=1024, description="Label selector of the rollout workers; for kubectl scale."
    )
    conditions: list[Condition] | None = Field(
        None, max_length=16, json_schema_extra=list_map_schema("type"), description="Conditions with reasons."
    )
    result: ResultLocation | None = Field(None, description="Location of the result, once it exists.")
    credentials: CredentialsStatus | None = Field(
        None, description="Certificates and passwords of the job's processes, once it has started."
    )
    start_turn: StartTurnStatus | None = Field(
        None,
        description="Turn of the job to start; null: jobs do not start one at a time, or the job takes none.",
    )
    document: DocumentStatus | None = Field(
        None, description="Document from which the job's processes read their job, once it has started."
    )
