"""What of a job may change once it exists."""

#: On one machine, between two runs: whatever lies below. It alters how the job runs, not what it learns.
HARMLESS = (
    "metadata.labels",
    "metadata.annotations",
    "spec.suspend",
    "spec.trackers",
    "spec.lifecycle",
    "spec.checkpoint",
    "spec.rollout.replicas",
    "spec.rollout.minReplicas",
)

#: On one machine, between two runs: may only grow.
MAX_STEPS = "spec.maxSteps"

#: In a cluster, at any time: what the operator itself acts on. The roles read everything else from the
#: document that the job was started with, so a change there would say what is not so.
IN_CLUSTER = (
    "spec.suspend",
    "spec.rollout.replicas",
    "spec.lifecycle.activeDeadlineSeconds",
    "spec.lifecycle.maxRestarts",
    "spec.lifecycle.ttlSecondsAfterFinished",
)
