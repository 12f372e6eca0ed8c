"""Fields of a job that may change after the job has been created."""

#: Fields that may change between two runs on one machine. They affect how the job runs, not its result.
#: `[]` stands for every entry of a list.
MUTABLE_BETWEEN_RUNS = (
    "metadata.labels",
    "metadata.annotations",
    "spec.suspend",
    "spec.managedBy",
    "spec.trackers",
    "spec.lifecycle",
    "spec.checkpoint.everySteps",
    "spec.checkpoint.keep",
    "spec.checkpoint.keepBest",
    "spec.checkpoint.keepEverySteps",
    "spec.checkpoint.volume",
    "spec.checkpoint.uri",
    "spec.checkpoint.recordBatches",
    "spec.overlap",
    "spec.rollout.replicas",
    "spec.rollout.minReplicas",
    "spec.rollout.environmentReplicas",
    "spec.reference.replicas",
    "spec.teacher.replicas",
    "spec.teachers[].replicas",
    "spec.rewards[].replicas",
    "spec.rewards[].egress",
    "spec.rollout.egress",
    "spec.validation.sampling.scores[].egress",
    "spec.validation.sets[].sampling.scores[].egress",
)

#: Fields that may only increase between two runs on one machine, where null is the greatest value: no limit.
#: `*` stands for the algorithm.
LENGTH_FIELDS = ("spec.maxSteps", "spec.algorithm.*.maxEpochs")

#: Fields that may change at any time in a cluster, because the operator acts on them. The roles read all
#: other fields from the job's document, so changes there would have no effect on what runs. Scorers read
#: their `replicas` from it too, but only for the size of their pulls, which keeps its first value.
MUTABLE_IN_CLUSTER = (
    "spec.suspend",
    "spec.rollout.replicas",
    "spec.rollout.environmentReplicas",
    "spec.reference.replicas",
    "spec.teacher.replicas",
    "spec.teachers[].replicas",
    "spec.rewards[].replicas",
    "spec.lifecycle.activeDeadlineSeconds",
    "spec.lifecycle.forceDeleteLostPods",
    "spec.lifecycle.maxRestarts",
    "spec.lifecycle.startDeadlineSeconds",
    "spec.lifecycle.ttlSecondsAfterFinished",
)

#: Fields that may change in a cluster while the job is suspended, and that the processes read: the resumed
#: job gets a new document.
MUTABLE_DOCUMENT_FIELDS = (
    "spec.rollout.minReplicas",
    "spec.checkpoint.everySteps",
    "spec.checkpoint.keep",
    "spec.checkpoint.keepBest",
    "spec.checkpoint.keepEverySteps",
    "spec.checkpoint.recordBatches",
    "spec.lifecycle.gracePeriodSeconds",
    "spec.lifecycle.maxFailedGroups",
)

#: Fields that may change in a cluster while the job is suspended, before and after the change: pods of the
#: resumed job, and its document, are made from them.
MUTABLE_WHILE_SUSPENDED = (
    "spec.podTemplate",
    "spec.controlPods",
    "spec.trainer.podTemplate",
    "spec.trainer.processesPerPod",
    "spec.critic.podTemplate",
    "spec.critic.processesPerPod",
    "spec.reference.podTemplate",
    "spec.reference.processesPerPod",
    "spec.teacher.podTemplate",
    "spec.teacher.processesPerPod",
    "spec.rollout.podTemplate",
    "spec.rollout.processesPerPod",
    *MUTABLE_DOCUMENT_FIELDS,
)
