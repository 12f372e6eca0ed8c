"""Rewards: models, Python functions and plugins that score responses."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from kubealign.pod_contract import FUNCTIONS_FOLDER
from kubealign.spec.base import (
    FILE_KEY_PATTERN,
    LIST_SET_SCHEMA,
    MAX_INT32,
    MODULE_FUNCTION_PATTERN,
    PROCESSES_PER_POD,
    PYTHON_NAME_PATTERN,
    SCORER_RANKS,
    EntryName,
    FilePath,
    ObjectName,
    ProcessesPerPod,
    Ranks,
    Replicas,
    ShortText,
    SpecModel,
    SpecUnion,
    distinct_items,
    field_errors,
    require_equal_pods,
    require_exactly_one,
    require_pods_of_its_own,
)
from kubealign.spec.pods.egress import EGRESS_DESCRIPTION, Egress
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.models import Model
from kubealign.spec.sections.reward_servers import HttpReward, JudgeReward, PolicyJudge
from kubealign.spec.sections.score_calls import RewardErrorPolicy, ScoreCalls, ScoreScope
from kubealign.spec.sections.step_rewards import (
    AGGREGATE_OF_MODELS,
    ONE_SCORE_OF_STEPS,
    STEPS_OF_FUNCTIONS,
    STEPS_OF_OWN_MODELS,
    STEPS_OF_SAMPLES,
    RewardSteps,
)
from kubealign.spec.sections.verifiers import Verifier


class RewardPlacement(StrEnum):
    """Own: a process of its own.

    WithCritic: in the critic's process; the weights are offloaded to the CPU while idle.
    """

    OWN = "Own"
    WITH_CRITIC = "WithCritic"


class FileFunction(SpecModel):
    """A function in a Python file."""

    path: FilePath = Field(description="Path of the file; relative to the job's file on one machine.")
    name: str = Field(
        "reward", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )


class ConfigMapFunction(SpecModel):
    """A function in a Python file that is stored in a ConfigMap of the job's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: str = Field(
        pattern=FILE_KEY_PATTERN,
        max_length=253,
        description="Key of the file in the ConfigMap, such as score.py.",
    )
    function: str = Field(
        "reward", pattern=PYTHON_NAME_PATTERN, max_length=253, description="Name of the function."
    )

    @property
    def path(self) -> str:
        """Path of the file in the pods that call the function."""
        return f"{FUNCTIONS_FOLDER}/{self.name}/{self.key}"


class RewardFunction(SpecUnion):
    """A Python function `f(prompts, responses, **columns)`, plain or async, that returns a list with one
    result per response.

    A result is a number, None where the function does not apply to the response, or an object with `reward`
    (a number or None), `metrics` (numbers by name) and `explanation` (a text), of which the last two may be
    missing; with `steps` of the reward also `steps` (a number for each step), whose sum is the reward that
    is missing. The keyword arguments are the columns of the data set.
    """

    module: Annotated[str, Field(pattern=MODULE_FUNCTION_PATTERN, max_length=512)] | None = Field(
        None, description="package.module:function, importable in the reward's process."
    )
    file: FileFunction | None = Field(None, description="A function in a Python file.")
    config_map: ConfigMapFunction | None = Field(
        None, description="A function in a ConfigMap; only in a cluster."
    )


#: Maximum characters of the name of a reward with several ranks: reward-NAME-1023-r1023 fits in a DNS label.
MAX_SHARDED_NAME = 45

#: Message for `onError` of a reward that is a model.
NO_ERRORS_OF_ITS_OWN = "a model has no errors of its own: remove it"

#: Message for the egress of a reward that is a model, or a verifier without a server.
NO_CODE_OF_ITS_OWN = (
    "only a function, a plugin, http, judge and verifier.code.server connect to other servers: remove it"
)

#: Message for `scope` of a reward that scores samples one by one.
NO_GROUPS = "only a function or a plugin can score all responses to a prompt at once: write Sample"

#: Message for `concurrency` of a reward that is a model.
NO_CALLS_OF_ITS_OWN = "a model scores its samples in one batch: remove it"

#: Fields of `Reward`, exactly one of which is set.
REWARD_SOURCES = (
    "model",
    "ensemble",
    "function",
    "plugin",
    "verifier",
    "http",
    "judge",
    "policy_judge",
    "episode",
)

#: Name under which a workflow gives its reward, where it names none.
DEFAULT_REWARD = "reward"

#: Fields of `Reward` that concern processes or calls, with the value that an episode's reward leaves.
NOT_OF_EPISODES: Mapping[str, Any] = MappingProxyType(
    {
        "replicas": 1,
        "concurrency": None,
        "processes_per_pod": None,
        "on_error": None,
        "pod_template": None,
    }
)

#: Fields of `Reward` that concern processes of its own, with the value that the policy's judgements leave.
NOT_OF_POLICY_JUDGES: Mapping[str, Any] = MappingProxyType(
    {name: default for name, default in NOT_OF_EPISODES.items() if name != "on_error"}
)

#: Message for a field of NOT_OF_POLICY_JUDGES.
JUDGED_BY_ROLLOUT_WORKERS = "the rollout workers answer the questions: remove it"

#: Message for a field of NOT_OF_EPISODES.
NO_PROCESS_OF_ITS_OWN = "the workflow gives the reward in the rollout workers: remove it"


class FirstStepsMoments(SpecModel):
    """Mean and standard deviation of the rewards of the first steps, while the policy is near its initial
    weights.
    """

    steps: int = Field(1, ge=1, le=MAX_INT32, description="Number of steps used to compute the moments.")


class FixedMoments(SpecModel):
    """Constant mean and standard deviation."""

    mean: float = Field(0.0, description="Value that is subtracted from the reward.")
    std: float = Field(1.0, gt=0, description="Value by which the centred reward is divided.")


class RunningMoments(SpecModel):
    """Running mean and standard deviation of all rewards of the job."""


class RewardStandardization(SpecUnion):
    """Standardisation of a reward: (reward - mean) / std, with the moments of this source's rewards."""

    first_steps: FirstStepsMoments | None = Field(None, description="Moments of the first steps.")
    fixed: FixedMoments | None = Field(None, description="Constant moments.")
    running: RunningMoments | None = Field(None, description="Running moments.")


class EnsembleAggregation(StrEnum):
    """Mean: the mean of the models' scores.

    Minimum: the minimum of the models' scores, a conservative estimate.
    """

    MEAN = "Mean"
    MINIMUM = "Minimum"


class RewardEnsemble(SpecModel):
    """Several reward models combined into one reward, in one process."""

    models: list[Model] = Field(
        min_length=2,
        max_length=16,
        description="Sequence-classification checkpoints, or results of rewardModel jobs.",
    )
    aggregate: EnsembleAggregation = Field(
        EnsembleAggregation.MEAN, description="Aggregation of the models' scores."
    )


class RewardPlugin(SpecModel):
    """A reward of another package: a function as in `function`, or a factory of one."""

    name: ShortText = Field(description="Name of the reward's entry point in the group kubealign.rewards.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, max_length=256, description="Parameters of the plugin, which validates them."
    )


class EpisodeRewardSource(SpecModel):
    """The reward that `rollout.workflow` gives a response: its function by `episode.reward(value, name)`, or
    its environment.

    Several values of a response are added up; with none the reward does not apply to the response.
    """

    name: EntryName = Field(DEFAULT_REWARD, description="Name under which the workflow gives the reward.")


#: Names of the entries of a mixture of prompts that a reward scores.
RewardSources: TypeAlias = Annotated[list[EntryName], Field(min_length=1, max_length=64), distinct_items]


class Reward(ScoreCalls, SpecModel):
    """One reward source: exactly one of model, ensemble, function, plugin, verifier, http, judge,
    policyJudge and episode.

    The reward of a response is the weighted sum over the rewards that apply to it.
    """

    name: EntryName = Field(description="Unique in the job; reported in the metrics as reward/NAME.")
    weight: float = Field(1.0, description="Weight in the sum of rewards.")
    sources: RewardSources | None = Field(
        None,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Only with data.prompts.mixture: names of the sources whose responses this reward "
        "scores. Rows of validation name theirs in the column source. null: all responses.",
    )
    model: Model | None = Field(
        None,
        description="A sequence-classification checkpoint, or the result of a rewardModel job. With another "
        "tokenizer than the policy's it scores the text of prompt and response.",
    )
    ensemble: RewardEnsemble | None = Field(
        None, description="Several reward models combined into one reward."
    )
    function: RewardFunction | None = Field(None, description="A Python function.")
    plugin: RewardPlugin | None = Field(None, description="A reward of another package.")
    verifier: Verifier | None = Field(
        None, description="A rule that checks the response, most often against a column of the row."
    )
    http: HttpReward | None = Field(None, description="A service of yours that scores samples.")
    judge: JudgeReward | None = Field(None, description="A language model of another server.")
    policy_judge: PolicyJudge | None = Field(None, description="The job's own policy as a judge.")
    episode: EpisodeRewardSource | None = Field(
        None, description="What the workflow gives its response, turn by turn or at the end."
    )
    attributes: dict[str, float] = Field(
        default_factory=dict,
        max_length=64,
        description="For models with several scores: weight of each score in this reward, by the "
        "score's name; empty: weight 1 for all.",
    )
    placement: RewardPlacement = Field(RewardPlacement.OWN, description="Process in which the reward runs.")
    replicas: Replicas = Field(
        1,
        description="Copies of the model or of the function that share the scoring; more than 1 only with "
        "placement Own. A function must not keep state from one call to the next.",
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Not for models: calls in flight in each replica, which are requests to another server, "
        "or processes of a function. null: 8 for http, judge and verifier.code.server, else 1.",
    )
    scope: ScoreScope = Field(
        ScoreScope.SAMPLE,
        description="Responses of a call. Group is only for function and plugin, with an algorithm that "
        "samples; timeoutSeconds and onError then hold for all responses to a prompt together.",
    )
    ranks: Ranks = Field(1, description=f"{SCORER_RANKS} More than 1 only for models with placement Own.")
    processes_per_pod: ProcessesPerPod | None = Field(
        None, description=f"{PROCESSES_PER_POD} Only with placement Own."
    )
    timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest time that the function may take for one sample. Samples that were scored "
        "together and take longer are scored again in smaller calls. With http, judge "
        "and verifier.code.server: time of a request; with policyJudge: of a judgement, its wait included.",
    )
    on_error: RewardErrorPolicy | None = Field(
        None,
        description="Not for models: effect of a sample for which the function raises or takes "
        "longer than timeoutSeconds, twice, or for which another server gives no reward after all retries. "
        "With Retry the job fails after several timeouts of a function in a row. null: Skip for http, "
        "judge, policyJudge and verifier.code.server, else Retry.",
    )
    standardize: RewardStandardization | None = Field(
        None, description="Standardisation to mean 0 and standard deviation 1; null: none."
    )
    clip: float | None = Field(
        None, gt=0, description="Bound on the absolute value after standardisation; null: unbounded."
    )
    truncated_value: float | None = Field(
        None,
        description="Reward of a response that did not end within maxTokens, replacing the value after "
        "standardisation; null: the source's own value.",
    )
    egress: Egress = Field(
        default_factory=list,
        description="Only with function, plugin, http, judge or verifier.code.server: destinations that it "
        f"{EGRESS_DESCRIPTION}",
    )
    pod_template: PodTemplate | None = Field(
        None, description="Patch of the reward's pods, with placement Own."
    )
    steps: RewardSteps | None = Field(
        None,
        description="Only with function, plugin or model: steps of the response that have a score each; "
        "null: none. The model is a process reward model with the policy's tokenizer, in a process of its "
        "own.",
    )

    def scores_source(self, source: str | None) -> bool:
        """Return True if this reward scores the responses to prompts of a source of the mixture."""
        return self.sources is None or source in self.sources

    @property
    def has_processes(self) -> bool:
        """True where processes of the reward's own compute it."""
        return self.placement is RewardPlacement.OWN and self.episode is None and self.policy_judge is None

    @property
    def models(self) -> list[Model]:
        """All models of this reward."""
        return [self.model] if self.model is not None else list(self.ensemble.models) if self.ensemble else []

    @model_validator(mode="after")
    def _one_source(self) -> "Reward":
        """Check that one source is set and that the other fields fit it."""
        require_exactly_one(self, list(REWARD_SOURCES))
        if self.attributes and self.model is None and self.ensemble is None:
            raise field_errors(
                "Reward", (("attributes",), self.attributes, "is for models with several scores: remove it")
            )
        if self.models and self.on_error not in (None, RewardErrorPolicy.RETRY):
            raise field_errors("Reward", (("onError",), self.on_error, NO_ERRORS_OF_ITS_OWN))
        if self.models and self.concurrency is not None:
            raise field_errors("Reward", (("concurrency",), self.concurrency, NO_CALLS_OF_ITS_OWN))
        has_local_rule = self.verifier is not None and not self.calls_a_server
        if (self.models or has_local_rule or self.policy_judge is not None) and self.egress:
            raise field_errors("Reward", (("egress",), self.egress, NO_CODE_OF_ITS_OWN))
        if self.scores_groups and self.function is None and self.plugin is None:
            raise field_errors("Reward", (("scope",), self.scope, NO_GROUPS))
        self._check_steps()
        self.check_code_time("Reward")
        if self.episode is not None:
            self._require_defaults(NOT_OF_EPISODES, NO_PROCESS_OF_ITS_OWN)
        if self.policy_judge is not None:
            self._require_defaults(NOT_OF_POLICY_JUDGES, JUDGED_BY_ROLLOUT_WORKERS)
        if self.model is None and self.placement is RewardPlacement.WITH_CRITIC:
            raise field_errors(
                "Reward",
                (
                    ("placement",),
                    self.placement,
                    "is for a single model; other sources run in their own process: set Own",
                ),
            )
        for name in ("replicas", "ranks"):
            if getattr(self, name) > 1 and self.placement is not RewardPlacement.OWN:
                remedy = (
                    f"a reward {self.placement} has no processes of its own: write 1, or set placement to Own"
                )
                raise field_errors("Reward", ((name,), getattr(self, name), remedy))
        if self.ranks > 1 and not self.models:
            remedy = "only a model or an ensemble has weights to divide: write 1, or set replicas"
            raise field_errors("Reward", (("ranks",), self.ranks, remedy))
        if self.ranks > 1 and len(self.name) > MAX_SHARDED_NAME:
            remedy = (
                f"has {len(self.name)} characters; with ranks above 1 the limit is {MAX_SHARDED_NAME}, since "
                "the names of the processes contain it"
            )
            raise field_errors("Reward", (("name",), self.name, remedy))
        if self.placement is RewardPlacement.WITH_CRITIC:
            require_pods_of_its_own(self, "a reward WithCritic has no pod of its own", "critic")
        require_equal_pods(self, self.processes_per_pod, self.ranks)
        return self

    def _check_steps(self) -> None:
        """Raise if the reward has steps and other fields do not fit them."""
        if self.steps is None:
            return
        if self.function is None and self.plugin is None and self.model is None:
            raise field_errors("Reward", (("steps",), self.steps, STEPS_OF_FUNCTIONS))
        if self.scores_groups:
            raise field_errors("Reward", (("scope",), self.scope, STEPS_OF_SAMPLES))
        if self.model is None and not self.steps.rewards_steps:
            raise field_errors("Reward", (("steps", "aggregate"), self.steps.aggregate, AGGREGATE_OF_MODELS))
        if self.placement is RewardPlacement.WITH_CRITIC:
            raise field_errors("Reward", (("placement",), self.placement, STEPS_OF_OWN_MODELS))
        if self.attributes:
            raise field_errors("Reward", (("attributes",), self.attributes, ONE_SCORE_OF_STEPS))

    def _require_defaults(self, defaults: Mapping[str, Any], problem: str) -> None:
        """Raise if a field is not at its default."""
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise field_errors("Reward", ((to_camel(name),), getattr(self, name), problem))
