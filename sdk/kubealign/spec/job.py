"""The AlignmentJob document."""

from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, model_validator

from kubealign.spec.algorithms import Algorithm, Hint, ResultKind
from kubealign.spec.base import (
    MAX_INT32,
    PROCESSES_PER_POD,
    SCORER_RANKS,
    JobName,
    ProcessesPerPod,
    Ranks,
    Replicas,
    SpecModel,
    TeacherName,
    field_alias,
    field_errors,
    list_map_schema,
    require_equal_pods,
    require_pods_of_its_own,
    unique_by,
)
from kubealign.spec.cross_field_validation import cross_field_problems
from kubealign.spec.evaluated_data import with_evaluated_data
from kubealign.spec.held_out_rows import HeldOutRows, list_held_out_rows
from kubealign.spec.learning_rates import LearningRate, resolve_learning_rate, with_learning_rate
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.control_pods import ControlPods
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.lifecycle import Checkpoint, Lifecycle, ManagedBy
from kubealign.spec.sections.models import Model, Policy
from kubealign.spec.sections.overlap import Overlap
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.rollout import (
    EXTERNAL_ENGINES,
    InFlightPolicy,
    ReferencePlacement,
    Rollout,
    RolloutPlacement,
)
from kubealign.spec.sections.trackers import TrackerSpec
from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign.spec.sections.validation import Validation, ValidationScore

GROUP = "kubealign.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "AlignmentJob"


class Critic(Trainer):
    """Model and training of the critic."""

    model: Model | None = Field(None, description="Initial weights; null: the first reward that is a model.")
    head_init: HeadInit = Field(HeadInit.ZERO, description="Initialisation of the value head.")


class Reference(SpecModel):
    """Frozen reference model to which the policy is compared."""

    placement: ReferencePlacement = Field(
        ReferencePlacement.OWN, description="Process in which the reference runs."
    )
    replicas: Replicas = Field(
        1,
        description="Copies of the model that share the scoring; more than 1 only with placement Own.",
    )
    ranks: Ranks = Field(1, description=f"{SCORER_RANKS} More than 1 only with placement Own.")
    processes_per_pod: ProcessesPerPod | None = Field(
        None, description=f"{PROCESSES_PER_POD} Only with placement Own."
    )
    model: Model | None = Field(None, description="Weights; null: the policy's initial weights.")
    pod_template: PodTemplate | None = Field(
        None, description="Patch of the pods of the reference, with placement Own."
    )

    @model_validator(mode="after")
    def _own_pod(self) -> "Reference":
        """Check that the placement allows replicas, ranks, the pod template and the model."""
        for name in ("replicas", "ranks"):
            if getattr(self, name) > 1 and self.placement is not ReferencePlacement.OWN:
                remedy = (
                    f"a reference {self.placement} has no processes of its own: write 1, or set placement "
                    "to Own"
                )
                raise field_errors("Reference", ((name,), getattr(self, name), remedy))
        if self.placement is not ReferencePlacement.OWN:
            require_pods_of_its_own(self, f"a reference {self.placement} has no pod of its own", "trainer")
        require_equal_pods(self, self.processes_per_pod, self.ranks)
        if self.model is not None and self.placement is ReferencePlacement.ADAPTER_OFF:
            remedy = "a reference AdapterOff uses the policy's own first weights: remove it"
            raise field_errors("Reference", (("model",), self.model, remedy))
        return self


class Teacher(SpecModel):
    """Frozen teacher model of a distillation."""

    model: Model = Field(description="Weights; the vocabulary must be the policy's.")
    replicas: Replicas = Field(
        1,
        description="Copies of the model that share the scoring.",
    )
    ranks: Ranks = Field(1, description=SCORER_RANKS)
    processes_per_pod: ProcessesPerPod | None = Field(None, description=PROCESSES_PER_POD)
    pod_template: PodTemplate | None = Field(None, description="Patch of the teacher's pods.")

    @model_validator(mode="after")
    def _pods(self) -> "Teacher":
        """Check that the ranks can be divided into pods."""
        require_equal_pods(self, self.processes_per_pod, self.ranks)
        return self


class NamedTeacher(Teacher):
    """One of several teachers, each of which judges the responses to the prompts of its own sources."""

    name: TeacherName = Field(
        description="Unique among the teachers; data.prompts.mixture[].teacher names it."
    )


class AlignmentJobSpec(SpecModel):
    """Desired alignment: algorithm, models, data and resources."""

    suspend: bool = Field(
        False,
        description="In a cluster: suspend the job. A suspended job saves a checkpoint and releases its "
        "pods; when set back to false, it resumes from its last checkpoint.",
    )
    managed_by: ManagedBy | None = Field(
        None,
        description="In a cluster: the controller that runs the job, as for batch Jobs; null: "
        "kubealign.dev/operator.",
    )
    seed: int = Field(1, ge=0, lt=2**53, description="Seed of all random numbers of the job.")
    max_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Number of training steps, each of which makes one weight version. null: the algorithm's "
        "maxEpochs alone ends the job. Where both are set, the one that is reached first ends it.",
    )
    algorithm: Algorithm = Field(description="Alignment algorithm.")
    policy: Policy = Field(description="The model to align.")
    data: Data = Field(
        json_schema_extra={"default": {}},
        description="Training data; only evaluate has none, because it reads the rows of validation.",
    )
    trainer: Trainer = Field(Trainer(), description="Training of the policy.")
    critic: Critic | None = Field(
        None,
        description="Only for algorithms with a critic; null: a critic initialised from the first "
        "reward that is a model.",
    )
    reference: Reference | None = Field(
        None,
        description="Only for algorithms with a reference; null: the policy's initial weights, in a "
        "process of their own or, with trainer.lora, the policy without its adapter.",
    )
    teacher: Teacher | None = Field(
        None,
        description="Only for distillation, and for onPolicyDistillation with distribution: the teacher "
        "model.",
    )
    teachers: Annotated[list[NamedTeacher], unique_by("name")] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="Several teachers of onPolicyDistillation, in place of teacher and of reference.model: "
        "each entry of data.prompts.mixture names the one that judges the responses to its prompts.",
    )
    rewards: list[Reward] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra=list_map_schema("name"),
        description="Rewards of the responses; for algorithms that sample.",
    )
    rollout: Rollout = Field(
        Rollout(),
        description="Generation of responses, for algorithms that sample and for sampled validation; "
        "otherwise only defaults are allowed.",
    )
    overlap: Overlap | None = Field(
        None,
        description="Computations of a step that run at the same time, for algorithms that learn from their "
        "own samples; null: all that can.",
    )
    validation: Validation | None = Field(None, description="Validation on held-out rows; null: none.")
    checkpoint: Checkpoint = Field(
        Checkpoint(), description="Checkpoints from which an interrupted job resumes."
    )
    trackers: Annotated[list[TrackerSpec], unique_by("name")] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=list_map_schema("name"),
        description="Experiment trackers that receive the metrics, in addition to the run directory and "
        "the dashboard.",
    )
    lifecycle: Lifecycle = Field(Lifecycle(), description="Deadlines, restart and failure budgets.")
    pod_template: PodTemplate | None = Field(
        None, description="Patch of all pods of the job; a role's own patch is applied on top."
    )
    control_pods: ControlPods | None = Field(
        None, description="Patches of the pods of preparation, driver and message bus."
    )

    @model_validator(mode="before")
    @classmethod
    def _evaluated_data(cls, spec: Any) -> Any:
        """Let the data of an evaluation be those of its first held-out rows."""
        return with_evaluated_data(spec) if isinstance(spec, dict) else spec

    @model_validator(mode="after")
    def _coherent(self) -> "AlignmentJobSpec":
        """Check the rules that span several fields."""
        invalid = list(cross_field_problems({name: getattr(self, name) for name in type(self).model_fields}))
        if invalid:
            raise field_errors("AlignmentJobSpec", *invalid)
        return self

    def total_steps(self, rows: int) -> int:
        """Return the number of steps of the job, over which its schedules extend.

        Args:
            rows: Number of rows of the prepared training data.
        """
        steps = self.known_steps(rows)
        # The validation requires maxSteps or maxEpochs.
        assert steps is not None
        return steps

    def known_steps(self, rows: int | None = None) -> int | None:
        """Return `total_steps` as far as it is known; None: not before the data is prepared.

        Args:
            rows: Number of rows of the prepared training data; None: not prepared yet.
        """
        steps: int | None = self.algorithm.value.known_steps(self.max_steps, rows)
        return steps

    @property
    def max_epochs(self) -> int | None:
        """Maximum number of epochs over the data; None: unlimited."""
        epochs: int | None = getattr(self.algorithm.value, "max_epochs", None)
        return epochs

    @property
    def samples(self) -> bool:
        """True if the job has rollout workers."""
        sampled = any(rows.sampling is not None for rows in self.held_out_rows)
        return bool(self.algorithm.value.samples) or sampled

    @property
    def effective_rollout(self) -> Rollout | None:
        """Rollout settings, with the engine's precision; None: the job has no rollout workers."""
        return self.rollout.with_precision(self.trainer.backend.value.precision) if self.samples else None

    @property
    def episode_rewards(self) -> dict[str, str]:
        """Name of each reward that workflows give -> name under which they give it."""
        return {reward.name: reward.episode.name for reward in self.rewards if reward.episode is not None}

    @property
    def own_rollout(self) -> Rollout | None:
        """Rollout settings of workers in processes of their own.

        None: the job has no rollout workers, or they run in the trainer's processes.
        """
        own = self.rollout.placement is RolloutPlacement.OWN
        return self.effective_rollout if own else None

    @property
    def environment_replicas(self) -> int:
        """Number of environment workers; 0: the job has no environment, or the rollout workers run it."""
        return self.rollout.environment_replicas if self.samples else 0

    @property
    def is_asynchronous(self) -> bool:
        """True if samples are generated while the trainer trains."""
        return bool(getattr(self.algorithm.value, "max_staleness", 0) > 0)

    @property
    def effective_overlap(self) -> Overlap:
        """Computations that run at the same time."""
        return self.overlap or Overlap()

    @property
    def in_flight(self) -> InFlightPolicy:
        """Treatment of unfinished responses when new weights arrive."""
        configured = self.rollout.refit.in_flight
        if configured is not None:
            return configured
        # A synchronous job has no unfinished responses at a refit, so either policy works.
        can_interrupt = self.is_asynchronous and self.rollout.engine.member not in EXTERNAL_ENGINES
        return InFlightPolicy.INTERRUPT if can_interrupt else InFlightPolicy.DRAIN

    @property
    def rollout_with_trainer(self) -> bool:
        """True if the trainer's processes are also the rollout workers."""
        return self.samples and self.own_rollout is None

    @property
    def policy_learning_rate(self) -> LearningRate:
        """Peak learning rate of the policy."""
        name = field_alias(Algorithm, self.algorithm.member)
        return resolve_learning_rate(self.trainer, "trainer", self.algorithm.value.learning_rate, name)

    @property
    def critic_learning_rate(self) -> LearningRate:
        """Peak learning rate of the critic."""
        name = field_alias(Algorithm, self.algorithm.member)
        return resolve_learning_rate(
            self.critic or Critic(),
            "critic",
            self.algorithm.value.critic_learning_rate,
            f"the critic of {name}",
        )

    @property
    def effective_trainer(self) -> Trainer:
        """Training of the policy, with its learning rate."""
        return with_learning_rate(self.trainer, self.policy_learning_rate.value)

    @property
    def effective_critic(self) -> Critic | None:
        """Critic with its learning rate, and its model taken from the first model-based reward by default;
        None: the algorithm has no critic.
        """
        if not self.algorithm.value.critic:
            return None
        critic = with_learning_rate(self.critic or Critic(), self.critic_learning_rate.value)
        if critic.model is not None:
            return critic
        return critic.model_copy(update={"model": next(r.model for r in self.rewards if r.model is not None)})

    @property
    def critic_head_attributes(self) -> dict[str, float] | None:
        """Weight of each score of the reward model whose head the critic starts from; empty: 1 for all.

        None: critic.model names the model, which must have a single score.
        """
        if self.critic is not None and self.critic.model is not None:
            return None
        return next((reward.attributes for reward in self.rewards if reward.model is not None), None)

    @property
    def reward_score_names(self) -> tuple[str, ...]:
        """Names of the scores of the reward model that the job trains; empty: no reward model is trained."""
        if self.algorithm.value.makes is not ResultKind.REWARD_MODEL:
            return ()
        layout = self.data.value.format.value
        if getattr(layout, "steps", None) is not None:
            return ("score",)
        return tuple(getattr(layout, "ratings", ("score",)))

    @property
    def uses_reference(self) -> bool:
        """True if a reference model's log-probabilities are needed."""
        return bool(self.algorithm.value.uses_reference) and not self.teachers

    @property
    def hint(self) -> Hint | None:
        """Hint in the teacher's prompts; None: the teacher, if any, reads the policy's prompts."""
        hint: Hint | None = getattr(self.algorithm.value, "hint", None)
        return hint

    @property
    def effective_reference(self) -> Reference | None:
        """Reference with its model taken from the policy by default; None: the job needs no reference."""
        if not self.uses_reference:
            return None
        adapted = self.trainer.lora is not None
        placement = ReferencePlacement.ADAPTER_OFF if adapted else ReferencePlacement.OWN
        reference = self.reference or Reference(placement=placement)
        return reference if reference.model else reference.model_copy(update={"model": self.policy.model})

    @property
    def held_out_rows(self) -> tuple[HeldOutRows, ...]:
        """Rows of the validation: its own, then those of its sets."""
        return list_held_out_rows(self.validation)

    @property
    def validation_scores(self) -> tuple[ValidationScore, ...]:
        """Scores of sampled validation responses, in addition to the rewards, under the names of their
        processes: NAME, or SET-NAME.
        """
        return tuple(score for rows in self.held_out_rows for score in rows.scores)

    @property
    def max_sampled_tokens(self) -> int:
        """Most tokens of a sampled response, of training or validation; 0: the job samples none."""
        rollout = self.effective_rollout
        if rollout is None:
            return 0
        own = [rows.sampling.max_tokens or 0 for rows in self.held_out_rows if rows.sampling is not None]
        return max(rollout.sampling.max_tokens, *own, 0)

    def scorer(self, name: str) -> Reward | ValidationScore:
        """Return the reward or validation score with this name.

        Raises:
            LookupError: No reward or validation score has this name; the message lists the names.
        """
        entries: list[Reward | ValidationScore] = [*self.rewards, *self.validation_scores]
        scorers = {entry.name: entry for entry in entries}
        if name not in scorers:
            raise LookupError(f"no reward or validation score {name}; there are {sorted(scorers)}")
        return scorers[name]


#: Fields of Kubernetes' ObjectMeta that kubealign does not read.
_IGNORED_METADATA = frozenset(
    {
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


class Metadata(SpecModel):
    """Kubernetes object metadata. Fields that kubealign does not read are accepted."""

    model_config = ConfigDict(extra="allow")

    name: JobName = Field(description="Unique in the namespace; other jobs refer to the job by this name.")
    namespace: str = Field("default", min_length=1, max_length=63, description="Kubernetes namespace.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels, copied to the job's pods.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations of any kind.")

    @model_validator(mode="after")
    def _known(self) -> "Metadata":
        """Reject fields that Kubernetes' ObjectMeta does not have."""
        unknown = {
            name: value for name, value in (self.model_extra or {}).items() if name not in _IGNORED_METADATA
        }
        if unknown:
            remedy = "is no field of Kubernetes metadata: remove it"
            raise field_errors("Metadata", *(((name,), value, remedy) for name, value in unknown.items()))
        return self


class AlignmentJob(SpecModel):
    """One alignment job."""

    api_version: Literal["kubealign.dev/v1alpha1"] = Field(
        "kubealign.dev/v1alpha1", description="Version of the spec."
    )
    kind: Literal["AlignmentJob"] = Field("AlignmentJob", description="Kind of the document.")
    metadata: Metadata = Field(description="The job's name and Kubernetes' own fields.")
    spec: AlignmentJobSpec = Field(description="Desired alignment: algorithm, models, data and resources.")

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.metadata.name

    @classmethod
    def from_yaml(cls, text: str) -> "AlignmentJob":
        """Parse a text that holds one document. File paths are left as they are. Raises SpecErrors."""
        from kubealign.spec.loading.loader import parse_job

        return parse_job(text)

    def to_yaml(self) -> str:
        """Return the job as a YAML document without its defaults."""
        document = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": self.metadata.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "spec": self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
