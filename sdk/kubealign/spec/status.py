"""What the operator says of a job: the `status` of an AlignmentJob in a cluster."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kubealign.spec.base import merged_by


class _Status(BaseModel):
    """Read leniently: a newer operator may say more than this SDK knows."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class JobPhase(StrEnum):
    """Succeeded and Failed are final: such a job never runs again."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class ConditionStatus(StrEnum):
    """Of a condition, as Kubernetes spells it."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_Status):
    """One thing that is so, is not so, or is not known, since when and why."""

    type: str = Field(max_length=316, description="Accepted, DependenciesReady, Ready, Complete, Failed ...")
    status: ConditionStatus = Field(description="Whether it is so.")
    reason: str = Field(max_length=1024, description="Why, in one CamelCase word.")
    message: str = Field("", max_length=32768, description="Why, in a sentence.")
    last_transition_time: datetime = Field(description="When `status` last changed.")
    observed_generation: int | None = Field(None, description="The metadata.generation that it is about.")


class RoleStatus(_Status):
    """The processes of one group."""

    name: str = Field(max_length=63, description="prepare, trainer, critic, reference, reward-NAME, ...")
    replicas: int = Field(description="Processes wanted; of rollout workers, those.")
    ready: int = Field(description="Of these, the ones that serve, or are done.")


class Result(_Status):
    """Where the job's result lies: a Hugging Face folder."""

    claim_name: str = Field(max_length=253, description="PersistentVolumeClaim.")
    # A volume path of the spec and what is added to it.
    path: str = Field(max_length=2048, description="Folder within it.")


class Dependency(Result):
    """The result of another job, as it was found when this one started."""

    name: str = Field(max_length=63, description="metadata.name of the other job.")


class AlignmentJobStatus(_Status):
    """All that the operator says of a job. Every field may be missing."""

    observed_generation: int | None = Field(None, description="The metadata.generation that was looked at.")
    phase: JobPhase | None = Field(None, description="Where the job is in its life.")
    message: str | None = Field(
        None, max_length=4096, description="What it waits for, or why it failed, in a sentence."
    )
    step: int | None = Field(None, description="The last step that was done.")
    max_steps: int | None = Field(None, description="Steps that were asked for.")
    reward: float | None = Field(None, description="Mean reward of the last step.")
    kl: float | None = Field(None, description="KL to the reference at the last step, in nats a token.")
    weight_version: int | None = Field(None, description="The weights that the rollout workers have.")
    start_time: datetime | None = Field(None, description="When it first left Pending.")
    completion_time: datetime | None = Field(None, description="When it succeeded or failed.")
    active_since: datetime | None = Field(
        None, description="Start of the present stretch of activity; null while suspended or ended."
    )
    active_seconds: float | None = Field(None, description="Seconds of activity before that stretch.")
    restarts: int | None = Field(None, description="Restarts so far, of lifecycle.maxRestarts.")
    attempts: dict[str, int] | None = Field(
        None,
        max_length=2048,
        description="How often each group of ranks and each other process was started again.",
    )
    dependencies: list[Dependency] | None = Field(
        None,
        max_length=64,
        json_schema_extra=merged_by("name"),
        description="The results that this job builds on; kept, for their jobs may be deleted meanwhile.",
    )
    roles: list[RoleStatus] | None = Field(
        None, max_length=64, json_schema_extra=merged_by("name"), description="The processes, by group."
    )
    rollout_replicas: int | None = Field(None, description="Rollout workers that exist; for kubectl scale.")
    selector: str | None = Field(
        None, max_length=1024, description="Label selector of the rollout workers; for kubectl scale."
    )
    conditions: list[Condition] | None = Field(
        None, max_length=16, json_schema_extra=merged_by("type"), description="In detail, and why."
    )
    result: Result | None = Field(None, description="Where the result lies, once there is one.")
