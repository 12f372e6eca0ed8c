"""Commits, deadlines and budgets."""

from pydantic import Field

from kubealign.spec.base import MOST, ObjectName, Spec, VolumePath


class RunsVolume(Spec):
    """A Kubernetes volume that every pod of the job can write."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim.")
    path: VolumePath = Field("", description="Folder within it; empty: its root.")


class Checkpoint(Spec):
    """The commits that a killed job goes on from. One is always made at the end."""

    every_steps: int = Field(50, ge=1, le=MOST, description="Steps between commits.")
    keep: int = Field(2, ge=1, le=100, description="Newest commits that are kept.")
    volume: RunsVolume | None = Field(
        None, description="In a cluster: where they lie. On one machine: the run's folder."
    )
    record_batches: bool = Field(
        False,
        description="Keep what every step was trained on, in order, so that `kubealign replay` can train on "
        "it again.",
    )


class Lifecycle(Spec):
    """When to give up."""

    active_deadline_seconds: float | None = Field(
        None, gt=0, le=MOST, description="The job fails when it has run this long; null: never."
    )
    max_restarts: int = Field(
        10, ge=0, le=MOST, description="Restarts of processes that died, over the whole job, before it fails."
    )
    max_failed_groups: int = Field(
        16, ge=0, le=MOST, description="Prompts given up after their retries before the job fails."
    )
    grace_period_seconds: float = Field(
        30.0, gt=0, le=86_400, description="Time that a process has to end in good order."
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, le=MOST, description="In a cluster: when a finished job is deleted; null: never."
    )
