"""The AlignmentJob: one document, one job."""

from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, model_validator

from kubealign.spec.algorithms import Algorithm, Makes
from kubealign.spec.base import MOST, JobName, Spec, incoherent, merged_by, unique
from kubealign.spec.coherence import problems
from kubealign.spec.data import Data
from kubealign.spec.lifecycle import Checkpoint, Lifecycle
from kubealign.spec.models import Model, Policy
from kubealign.spec.pod_template import PodTemplate
from kubealign.spec.rewards import Reward
from kubealign.spec.rollout import ENGINES_OF_OTHERS, InFlight, ReferencePlacement, Rollout, RolloutPlacement
from kubealign.spec.trackers import Tracker
from kubealign.spec.training import HeadInit, Trainer
from kubealign.spec.validation import Validation, ValidationScore

GROUP = "kubealign.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "AlignmentJob"


class Critic(Trainer):
    """The critic's model, and how it is trained."""

    model: Model | None = Field(
        None, description="Its first weights; null: the first reward that is a model."
    )
    head_init: HeadInit = Field(HeadInit.ZERO, description="First weights of the value head.")


class Reference(Spec):
    """The frozen model that the policy is compared with."""

    placement: ReferencePlacement = Field(ReferencePlacement.OWN, description="Where it runs.")
    model: Model | None = Field(None, description="Its weights; null: the policy's first weights.")
    pod_template: PodTemplate | None = Field(None, description="Patch of its pod, with placement Own.")

    @model_validator(mode="after")
    def _own_pod(self) -> "Reference":
        if self.pod_template is not None and self.placement is not ReferencePlacement.OWN:
            remedy = f"a reference {self.placement} has no pod of its own: set trainer.podTemplate"
            raise incoherent("Reference", (("podTemplate",), self.pod_template, remedy))
        if self.model is not None and self.placement is ReferencePlacement.ADAPTER_OFF:
            remedy = "a reference AdapterOff is the policy's own first weights: remove it"
            raise incoherent("Reference", (("model",), self.model, remedy))
        return self


class Teacher(Spec):
    """The frozen model that is imitated."""

    model: Model = Field(description="Its weights; its vocabulary is the policy's.")
    pod_template: PodTemplate | None = Field(None, description="Patch of its pod.")


class AlignmentJobSpec(Spec):
    """What to align, how, on what."""

    suspend: bool = Field(
        False,
        description="In a cluster: whether the job shall wait. It saves and gives its pods back; when this "
        "is false again, it goes on from its last commit.",
    )
    seed: int = Field(1, ge=0, lt=2**53, description="Everything random is drawn from it.")
    max_steps: int = Field(ge=1, le=MOST, description="Steps, each of which makes one weight version.")
    algorithm: Algorithm = Field(description="How the policy is aligned.")
    policy: Policy = Field(description="The model that is aligned.")
    data: Data = Field(description="What it learns from.")
    trainer: Trainer = Field(Trainer(), description="How the policy is trained.")
    critic: Critic | None = Field(
        None,
        description="Only for algorithms with a critic; null: one from the first reward that is a model.",
    )
    reference: Reference | None = Field(
        None,
        description="Only where the algorithm is held to one; null: the policy's first weights, in a process "
        "of their own, or with trainer.lora the policy without its adapter.",
    )
    teacher: Teacher | None = Field(None, description="Only for distillation: the model that is imitated.")
    rewards: list[Reward] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra=merged_by("name"),
        description="What scores the responses; for algorithms that sample.",
    )
    rollout: Rollout = Field(
        Rollout(),
        description="For algorithms that sample, and for sampled validation; elsewhere it must say nothing "
        "but the defaults.",
    )
    validation: Validation | None = Field(None, description="Measuring on held-out rows; null: none.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="The commits that a killed job goes on from.")
    trackers: Annotated[list[Tracker], unique("name")] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=merged_by("name"),
        description="Where the figures go besides the run's own files and the dashboard.",
    )
    lifecycle: Lifecycle = Field(Lifecycle(), description="When to give up.")
    pod_template: PodTemplate | None = Field(
        None, description="Patch of all of the job's pods; a role's own is laid over it."
    )

    @model_validator(mode="after")
    def _coherent(self) -> "AlignmentJobSpec":
        found = list(problems({name: getattr(self, name) for name in type(self).model_fields}))
        if found:
            raise incoherent("AlignmentJobSpec", *found)
        return self

    @property
    def samples(self) -> bool:
        """Whether the job has rollout workers."""
        sampled = self.validation is not None and self.validation.sampling is not None
        return bool(self.algorithm.value.samples) or sampled

    @property
    def effective_rollout(self) -> Rollout | None:
        """None: the job has no rollout workers."""
        return self.rollout if self.samples else None

    @property
    def own_rollout(self) -> Rollout | None:
        """The rollout whose workers are processes of their own; None: there are none, or they live with the
        trainer."""
        own = self.rollout.placement is RolloutPlacement.OWN
        return self.rollout if self.samples and own else None

    @property
    def asynchronous(self) -> bool:
        """Whether samples are made while the trainer learns."""
        return bool(getattr(self.algorithm.value, "max_staleness", 0) > 0)

    @property
    def in_flight(self) -> InFlight:
        """What becomes of responses in the making when new weights come."""
        told = self.rollout.refit.in_flight
        if told is not None:
            return told
        # Of a synchronous job nothing is in the making at a refit, whichever it is.
        goes_on = self.asynchronous and self.rollout.engine.member not in ENGINES_OF_OTHERS
        return InFlight.INTERRUPT if goes_on else InFlight.DRAIN

    @property
    def rollout_with_trainer(self) -> bool:
        """Whether the trainer's processes are the rollout workers too."""
        return self.samples and self.own_rollout is None

    @property
    def effective_critic(self) -> Critic | None:
        """The critic, its model filled in from the first reward that is one; None: the algorithm has none."""
        if not self.algorithm.value.critic:
            return None
        critic = self.critic or Critic()
        if critic.model is not None:
            return critic
        return critic.model_copy(update={"model": next(r.model for r in self.rewards if r.model is not None)})

    @property
    def learned_scores(self) -> tuple[str, ...]:
        """Names of the scores of the reward model that the job makes; empty: it makes none."""
        if self.algorithm.value.makes is not Makes.REWARD_MODEL:
            return ()
        return tuple(getattr(self.data.value.format.value, "ratings", ("score",)))

    @property
    def uses_reference(self) -> bool:
        """Whether a reference's log-probabilities are needed."""
        return bool(self.algorithm.value.uses_reference)

    @property
    def effective_reference(self) -> Reference | None:
        """The reference with its model filled in from the policy; None: nothing is compared with one."""
        if not self.uses_reference:
            return None
        adapted = self.trainer.lora is not None
        placement = ReferencePlacement.ADAPTER_OFF if adapted else ReferencePlacement.OWN
        reference = self.reference or Reference(placement=placement)
        return reference if reference.model else reference.model_copy(update={"model": self.policy.model})

    @property
    def scores(self) -> tuple[ValidationScore, ...]:
        """What sampled validation responses are measured by, besides the rewards."""
        sampling = None if self.validation is None else self.validation.sampling
        return () if sampling is None else tuple(sampling.scores)

    def scorer(self, name: str) -> Reward | ValidationScore:
        """The reward or validation score of this name. Raises LookupError with the names there are."""
        entries: list[Reward | ValidationScore] = [*self.rewards, *self.scores]
        scorers = {entry.name: entry for entry in entries}
        if name not in scorers:
            raise LookupError(f"no reward or validation score {name}; there are {sorted(scorers)}")
        return scorers[name]


#: The fields of Kubernetes' ObjectMeta that kubealign does not read.
_OTHER_METADATA = frozenset(
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


class Metadata(Spec):
    """Kubernetes object metadata, as far as it matters here; its other fields may be there too."""

    model_config = ConfigDict(extra="allow")

    name: JobName = Field(description="Unique in the namespace; other jobs name this one by it.")
    namespace: str = Field("default", min_length=1, max_length=63, description="Kubernetes namespace.")
    labels: dict[str, str] = Field(default_factory=dict, description="Passed on to the job's pods.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Notes of any kind.")

    @model_validator(mode="after")
    def _known(self) -> "Metadata":
        unknown = {
            name: value for name, value in (self.model_extra or {}).items() if name not in _OTHER_METADATA
        }
        if unknown:
            remedy = "is no field of Kubernetes metadata: remove it"
            raise incoherent("Metadata", *(((name,), value, remedy) for name, value in unknown.items()))
        return self


class AlignmentJob(Spec):
    """One job."""

    api_version: Literal["kubealign.dev/v1alpha1"] = Field(
        "kubealign.dev/v1alpha1", description="The version of the spec."
    )
    kind: Literal["AlignmentJob"] = Field("AlignmentJob", description="What the document is.")
    metadata: Metadata = Field(description="The job's name, and Kubernetes' own fields.")
    spec: AlignmentJobSpec = Field(description="What to align, how, on what.")

    @property
    def name(self) -> str:
        return self.metadata.name

    @classmethod
    def from_yaml(cls, text: str) -> "AlignmentJob":
        """The job of a text that holds one document; file paths in it stay as they are. Raises SpecErrors."""
        from kubealign.spec.load import job_of_text

        return job_of_text(text)

    def to_yaml(self) -> str:
        """The job as a document that holds what was set, defaults left out."""
        document = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": self.metadata.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "spec": self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
