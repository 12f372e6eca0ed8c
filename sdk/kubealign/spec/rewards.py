"""What scores a response: a model, or a Python function."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from kubealign.pod import FUNCTIONS
from kubealign.spec.base import (
    FILE_KEY,
    MODULE_FUNCTION,
    MOST,
    PYTHON_NAME,
    FilePath,
    Name,
    ObjectName,
    ShortText,
    Spec,
    Union,
    exactly_one,
    incoherent,
)
from kubealign.spec.models import Model
from kubealign.spec.pod_template import PodTemplate


class RewardPlacement(StrEnum):
    """Own: a process of its own. WithCritic: in the critic's process, idle weights on the CPU."""

    OWN = "Own"
    WITH_CRITIC = "WithCritic"


class FileFunction(Spec):
    """A function in a Python file."""

    path: FilePath = Field(description="The file; relative to the job's file when run on one machine.")
    name: str = Field("reward", pattern=PYTHON_NAME, max_length=253, description="The function in it.")


class ConfigMapFunction(Spec):
    """A function in a Python file that a ConfigMap of the job's namespace holds."""

    name: ObjectName = Field(description="The ConfigMap.")
    key: str = Field(
        pattern=FILE_KEY, max_length=253, description="The key that holds the file, such as score.py."
    )
    function: str = Field("reward", pattern=PYTHON_NAME, max_length=253, description="The function in it.")

    @property
    def path(self) -> str:
        """The file in the pods that call the function."""
        return f"{FUNCTIONS}/{self.name}/{self.key}"


class RewardFunction(Union):
    """A Python function `f(prompts, responses, **columns) -> list of numbers`, one per response. The
    columns are the data set's."""

    module: Annotated[str, Field(pattern=MODULE_FUNCTION, max_length=512)] | None = Field(
        None, description="package.module:function, importable where the reward runs."
    )
    file: FileFunction | None = Field(None, description="A function in a Python file.")
    config_map: ConfigMapFunction | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


#: The members of a reward, of which one is set.
SOURCES = ("model", "ensemble", "function", "plugin")


class FirstSteps(Spec):
    """Mean and standard deviation of the first steps' rewards, when the policy has hardly moved."""

    steps: int = Field(1, ge=1, le=MOST, description="Steps that are counted.")


class FixedMoments(Spec):
    """Given numbers."""

    mean: float = Field(0.0, description="Taken from the reward.")
    std: float = Field(1.0, gt=0, description="The rest is divided by this.")


class RunningMoments(Spec):
    """Mean and standard deviation of all rewards of the job so far."""


class Standardize(Union):
    """(reward - mean) / std, with the moments of this source's own rewards."""

    first_steps: FirstSteps | None = Field(None, description="Moments of the first steps.")
    fixed: FixedMoments | None = Field(None, description="Given moments.")
    running: RunningMoments | None = Field(None, description="Moments of all steps so far.")


class Aggregate(StrEnum):
    """Mean: of the members' scores. Minimum: the least of them, which no single member's error raises."""

    MEAN = "Mean"
    MINIMUM = "Minimum"


class Ensemble(Spec):
    """Several reward models as one, in one process."""

    models: list[Model] = Field(
        min_length=2, max_length=16, description="Sequence-classification checkpoints, or rewardModel jobs."
    )
    aggregate: Aggregate = Field(Aggregate.MEAN, description="What becomes of their scores.")


class RewardPlugin(Spec):
    """A reward of another package: a function as in `function`, or what makes one."""

    name: ShortText = Field(description="Name of its entry point in the group kubealign.rewards.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, max_length=256, description="What it is made with; it checks them itself."
    )


class Reward(Spec):
    """One source of reward, exactly one of model, ensemble, function and plugin. The job's reward is the
    weighted sum over its sources."""

    name: Name = Field(description="Unique in the job; in the metrics as reward/NAME.")
    weight: float = Field(1.0, description="Its share in the sum.")
    model: Model | None = Field(
        None, description="A sequence-classification checkpoint, or the result of a rewardModel job."
    )
    ensemble: Ensemble | None = Field(None, description="Several reward models as one.")
    function: RewardFunction | None = Field(None, description="A Python function.")
    plugin: RewardPlugin | None = Field(None, description="A reward of another package.")
    attributes: dict[str, float] = Field(
        default_factory=dict,
        max_length=64,
        description="Of a model with several scores: each one's weight in this reward, by its name; empty: "
        "all weigh 1.",
    )
    placement: RewardPlacement = Field(RewardPlacement.OWN, description="Where it runs.")
    timeout_seconds: float = Field(
        30.0, gt=0, description="A function that has not answered by then is stopped and the job fails."
    )
    standardize: Standardize | None = Field(
        None, description="Brought to mean 0 and deviation 1; null: as it is."
    )
    clip: float | None = Field(
        None, gt=0, description="Bound on the absolute value, after standardisation; null: none."
    )
    truncated_value: float | None = Field(
        None,
        description="The value of a response that did not end within maxTokens, after standardisation; "
        "null: what the source says.",
    )
    pod_template: PodTemplate | None = Field(None, description="Patch of its pod, with placement Own.")

    @property
    def models(self) -> list[Model]:
        """Every model that it is made of."""
        return [self.model] if self.model is not None else list(self.ensemble.models) if self.ensemble else []

    @model_validator(mode="after")
    def _one_source(self) -> "Reward":
        exactly_one(self, list(SOURCES))
        if self.attributes and self.model is None and self.ensemble is None:
            raise incoherent(
                "Reward", (("attributes",), self.attributes, "is for models with several scores: remove it")
            )
        if self.model is None and self.placement is RewardPlacement.WITH_CRITIC:
            raise incoherent(
                "Reward",
                (("placement",), self.placement, "is for a single model; all else runs on its own: set Own"),
            )
        if self.pod_template is not None and self.placement is RewardPlacement.WITH_CRITIC:
            remedy = "a reward WithCritic has no pod of its own: set critic.podTemplate"
            raise incoherent("Reward", (("podTemplate",), self.pod_template, remedy))
        return self
