"""CEL rules of single models: unions, and the checks of the models' own validators."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from kubealign.spec.algorithms import (
    KL,
    AdvantageNormalization,
    AnnotateSpec,
    ClipCov,
    ClippedRatioSpec,
    CritiqueRevision,
    GenerateSpec,
    GroupRelativeSpec,
    ImportanceCorrection,
    Judge,
    OnlineDPOSpec,
    OnPolicySpec,
    PairwiseComparison,
    PPOSpec,
    RLOOSpec,
    TeacherDistribution,
    WeightBounds,
    XPOSpec,
)
from kubealign.spec.algorithms.evaluation import NOT_LATER, EvaluateSpec
from kubealign.spec.algorithms.on_policy_distillation import (
    HINT_REMEDY,
    KL_REMEDY,
    Hint,
    OnPolicyDistillationSpec,
)
from kubealign.spec.algorithms.teacher_distribution import BETA_REMEDY
from kubealign.spec.base import SpecUnion, field_alias
from kubealign.spec.cross_field_validation import RESERVED_NAMES
from kubealign.spec.field_lookup import item_type, nested_model
from kubealign.spec.job import Critic, Reference, Teacher
from kubealign.spec.pods.egress import (
    EGRESS_DESTINATIONS,
    ENDS_BEFORE_START,
    SERVES_METADATA,
    EgressPort,
    EgressRule,
    IpBlock,
)
from kubealign.spec.pods.template import (
    RESERVED_LABEL_PREFIX,
    RESERVED_LABELS,
    RESERVED_VARIABLE_PREFIX,
    EnvSource,
    EnvVariable,
    PodMetadata,
)
from kubealign.spec.pods.volumes import (
    RESERVED_FOLDERS,
    RESERVED_VOLUME_PREFIX,
    VOLUME_TYPES,
    Volume,
    VolumeMount,
)
from kubealign.spec.sections.code_verifier import (
    DEFAULT_PARALLEL_TESTS,
    NO_EFFECT_ON_INPUT_OUTPUT,
    NO_EFFECT_WITH_SERVER,
    CodeVerifier,
)
from kubealign.spec.sections.curriculum import NO_POOL, OVERLAPPING_POOLS, PromptCurriculum
from kubealign.spec.sections.data import (
    READS_ALL_ROWS,
    STREAMS_ALL_PROMPTS,
    STREAMS_FILES,
    STREAMS_ONE_SOURCE,
    Data,
    DemonstrationDataset,
    PreferenceDataset,
    PromptDataset,
    RatingDataset,
    UnpairedDataset,
    VolumeFileSource,
)
from kubealign.spec.sections.lifecycle import PARENT_EXAMPLE, PARENT_MEMBERS, CheckpointSource
from kubealign.spec.sections.megatron import FLOAT16_MESSAGE, MegatronBackendSpec
from kubealign.spec.sections.optimizers import (
    DEVICE_IS_TORCHS,
    MUON_IS_TORCHS,
    MUON_WITH_LORA,
    RATE_IS_REQUIRED,
    STATES_ARE_TORCHS,
    Muon,
)
from kubealign.spec.sections.overlap import NEEDS_COMPLETE_BATCH, Overlap
from kubealign.spec.sections.reward_servers import SCALE_IS_EMPTY, JudgeScale
from kubealign.spec.sections.rewards import (
    JUDGED_BY_ROLLOUT_WORKERS,
    MAX_SHARDED_NAME,
    NO_CALLS_OF_ITS_OWN,
    NO_CODE_OF_ITS_OWN,
    NO_ERRORS_OF_ITS_OWN,
    NO_GROUPS,
    NO_PROCESS_OF_ITS_OWN,
    NOT_OF_EPISODES,
    NOT_OF_POLICY_JUDGES,
    REWARD_SOURCES,
    Reward,
)
from kubealign.spec.sections.rollout import MismatchGateSpec, Rollout, SamplingSpec
from kubealign.spec.sections.trackers import (
    NO_TRACKIO_TOKEN,
    ONE_TRACKIO_DESTINATION,
    TRACKER_MEMBERS,
    TrackerSpec,
    TrackioTracker,
)
from kubealign.spec.sections.training import (
    NO_MEGATRON_QUANTIZATION,
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Trainer,
)
from kubealign.spec.sections.validation import (
    NAMED_AS_PRESET_SCORE,
    NOTHING_STOPS,
    NOTHING_VALIDATED,
    PRESET_SCORE,
    ROWS_ARE_IN_SETS,
    SCORE_SOURCES,
    SCORES_NO_GROUPS,
    TOO_FEW_SAMPLES,
    VERIFIER_CONNECTS_NOWHERE,
    EarlyStopping,
    EarlyStoppingTarget,
    Validation,
    ValidationSampling,
    ValidationScore,
    ValidationSet,
)
from kubealign.spec.sections.verifiers import LinearLength
from kubealign.spec.validation_checks import (
    LONG_SCORE_NAME,
    MAX_SCORE_PROCESS_NAME,
    REWARD_METRICS,
    SET_NAMED_AS_SCORE,
    SET_NAMED_REWARD,
    VALIDATES_ALL_PROMPTS,
    VALIDATES_ALL_ROWS,
)
from kubealign.spec.workflows.agents import AGENT_EXAMPLE, AGENT_KINDS, AgentSpec, ExternalAgents
from kubealign.spec.workflows.environments import ENVIRONMENT_KINDS, NO_CHAT_BEFORE_TURN, EnvironmentSpec
from kubealign.spec.workflows.tool_calls import MCP_EXAMPLE, MCP_TRANSPORTS, McpServerSpec, ToolCallsSpec
from kubealign_operator.crd.agent_rules import agent_placement_rule, agent_process_rules, external_agents_rule
from kubealign_operator.crd.branch_rules import branch_rules
from kubealign_operator.crd.cel import CelRule, cel_string
from kubealign_operator.crd.inference_server_rules import inference_server_rules
from kubealign_operator.crd.tool_call_rules import tool_calls_rules


def exactly_one_of(names: Sequence[str], example: str = "") -> list[CelRule]:
    """Return rules that exactly one of these fields is set."""
    remedy = f": write {example}" if example else ""
    message = f"exactly one of {', '.join(names)} must be set; none is set{remedy}"
    return [CelRule(" || ".join(f"has(self.{name})" for name in names), message), at_most_one_of(names)]


def at_most_one_of(names: Sequence[str]) -> CelRule:
    """Return the rule that at most one of these fields is set."""
    conditions = ", ".join(f"has(self.{name})" for name in names)
    message = f"exactly one of {', '.join(names)} must be set; several are set: remove all but one"
    return CelRule(f"[{conditions}].filter(set, set).size() <= 1", message)


def union_rules(model: type[SpecUnion]) -> list[CelRule]:
    """Return the rules of a union; none if its only member is the default."""
    names = [field_alias(model, name) for name in model.model_fields]
    if model is Data:
        # An evaluation has no training data: the rules of the algorithms and of the validation name theirs.
        return [at_most_one_of(names)]
    if model.default_member is None:
        return exactly_one_of(names)
    return [at_most_one_of(names)] if len(names) > 1 else []


def _divisor_rule(ranks: str, field: str) -> CelRule:
    """Return the rule that the ranks of a model can be divided into pods.

    Args:
        ranks: Expression of the number of ranks.
        field: Name of the field with the number of ranks.
    """
    return CelRule(
        f"!has(self.processesPerPod) || {ranks} % self.processesPerPod == 0",
        f"must divide {field}",
        field_path=".processesPerPod",
    )


def _parallelism_rules() -> Iterator[CelRule]:
    """Yield the rules of a trainer whose ranks are divided by the backend."""
    yield CelRule(
        "!has(self.backend.torch) || self.ranks % self.backend.torch.contextParallel == 0",
        "must be a multiple of backend.torch.contextParallel",
        field_path=".ranks",
    )
    megatron, is_set = "self.backend.megatron", "has(self.backend.megatron)"
    shared = f"{megatron}.tensorParallel * {megatron}.pipelineParallel"
    yield CelRule(
        f"!{is_set} || self.ranks % ({shared} * {megatron}.contextParallel) == 0",
        "must be a multiple of tensorParallel x pipelineParallel x contextParallel",
        field_path=".ranks",
    )
    yield CelRule(
        f"!{is_set} || self.ranks % ({shared} * {megatron}.expertParallel) == 0",
        "x tensorParallel x pipelineParallel must divide trainer.ranks",
        field_path=".backend.megatron.expertParallel",
    )
    yield CelRule(
        f"!{is_set} || {megatron}.expertParallel == 1 || {megatron}.tensorParallel == 1 || "
        f"{megatron}.sequenceParallel",
        "must be true where both expertParallel and tensorParallel are above 1",
        field_path=".backend.megatron.sequenceParallel",
    )


def _optimizer_rules() -> Iterator[CelRule]:
    """Yield the rules of optimiser fields that need the torch backend, or all weights."""
    optimizer, is_torch = "self.optimizer", "!has(self.backend.megatron)"
    yield CelRule(f"!has({optimizer}.muon) || {is_torch}", MUON_IS_TORCHS, field_path=".optimizer.muon")
    yield CelRule(
        f"!has({optimizer}.muon) || !has(self.lora) || has(self.backend.megatron)",
        MUON_WITH_LORA,
        field_path=".optimizer.muon",
    )
    yield CelRule(
        f"{optimizer}.adamW.states == 'Float32' || {is_torch}",
        STATES_ARE_TORCHS,
        field_path=".optimizer.adamW.states",
    )
    yield CelRule(
        f"{optimizer}.device == 'Accelerator' || {is_torch}", DEVICE_IS_TORCHS, field_path=".optimizer.device"
    )


def _quantization_rule() -> CelRule:
    """Return the rule that the backend can quantise the base."""
    return CelRule(
        "!has(self.backend.megatron) || !has(self.lora) || !has(self.lora.quantization)",
        NO_MEGATRON_QUANTIZATION,
        field_path=".lora.quantization",
    )


def _contains_placeholder(field: str, name: str) -> CelRule:
    """Return the rule that a prompt template contains this placeholder."""
    return CelRule(
        f"self.{field}.contains({cel_string('{' + name + '}')})",
        f"must have {{{name}}} in it",
        field_path=f".{field}",
    )


def _defaults_beside(member: str, defaults: Mapping[str, Any], message: str) -> Iterator[CelRule]:
    """Yield the rules that fields have their defaults where a member is set. Fields of the default null have
    no default in the schema.
    """
    for name, default in defaults.items():
        field = to_camel(name)
        unset = f"!has(self.{field})" if default is None else f"self.{field} == {default}"
        yield CelRule(f"!has(self.{member}) || {unset}", message, field_path=f".{field}")


def _no_data_with(field: str) -> str:
    """Return the condition that no kind of data has this field."""
    return "!has(self.data) || " + " && ".join(
        f"(!has(self.data.{kind}) || !has(self.data.{kind}.{field}))" for kind in Data.model_fields
    )


def _held_out_data_rules() -> list[CelRule]:
    """Return the rules that held-out data are set, and of fields that training data alone have."""
    kinds = " || ".join(f"has(self.data.{kind})" for kind in Data.model_fields)
    return [
        CelRule(
            f"!has(self.data) || {kinds}",
            f"exactly one of {', '.join(Data.model_fields)} must be set; none is set",
            field_path=".data",
        ),
        CelRule(
            _no_data_with("mixture"),
            f"validation reads {READS_ALL_ROWS}, and name groupBy",
            field_path=".data",
        ),
        CelRule(
            "!has(self.data) || !has(self.data.prompts) || !has(self.data.prompts.curriculum)",
            VALIDATES_ALL_PROMPTS,
            field_path=".data",
        ),
        CelRule(_no_data_with("streaming"), VALIDATES_ALL_ROWS, field_path=".data"),
    ]


_KL_RULES = [
    *exactly_one_of(["fixed", "adaptive"], "fixed: {coefficient: 0.05}"),
    CelRule(
        "!has(self.corrected) || !self.corrected || self.placement == 'Loss'",
        "only a KL penalty in the loss has a gradient to correct: set placement to Loss, or remove it",
        field_path=".corrected",
    ),
]

_MINIBATCH_RULE = CelRule(
    "!has(self.minibatchSequences) || "
    "self.promptsPerStep * self.samplesPerPrompt % self.minibatchSequences == 0",
    "must divide promptsPerStep x samplesPerPrompt",
    field_path=".minibatchSequences",
)
_ADAPTIVE_KL_RULE = CelRule(
    "!has(self.kl.adaptive) || self.kl.placement != 'Loss'",
    "an adaptive coefficient needs the KL penalty in the reward: set placement to Reward, or use fixed",
    field_path=".kl.adaptive",
)
_PASS_AT_K_RULE = CelRule(
    "!has(self.advantage.passAtK) || self.advantage.passAtK <= self.samplesPerPrompt",
    "must be at most samplesPerPrompt",
    field_path=".advantage.passAtK",
)
_TOKEN_ADVANTAGE_RULES = [
    CelRule(
        "!has(self.advantage.passAtK)",
        "compares whole responses, but these advantages are those of tokens: remove it",
        field_path=".advantage.passAtK",
    ),
    CelRule(
        "self.advantage.scale != 'GroupMean'",
        "compares whole responses, but these advantages are those of tokens: set Batch or Group",
        field_path=".advantage.scale",
    ),
]
_SEPARATE_REWARDS_RULE = CelRule(
    "self.rewardAggregation != 'NormalizeThenSum' || (!has(self.overlong) && (self.kl.placement == 'Loss' || "
    "(has(self.kl.fixed) && self.kl.fixed.coefficient == 0.0)))",
    "overlong and a KL penalty in the reward have no scale of their own: remove them, or set "
    "SumThenNormalize",
    field_path=".rewardAggregation",
)
_TOKEN_BASELINE_RULE = CelRule(
    "self.advantage.center != 'OptimalToken'",
    "OptimalToken is for grpo, deepseekMath, drGrpo, dapo, gspo and cispo: set another center",
    field_path=".advantage.center",
)
_REWARDS_OF_TOKEN_BASELINE_RULE = CelRule(
    "self.rewardAggregation != 'NormalizeThenSum' || self.advantage.center != 'OptimalToken'",
    "OptimalToken has one baseline for the sum of the rewards: set SumThenNormalize",
    field_path=".rewardAggregation",
)
_TRUST_REGION_RULE = CelRule(
    "!has(self.trustRegion) || self.ratio == 'Token'",
    "trustRegion needs the ratio of each token: set Token, or remove trustRegion",
    field_path=".ratio",
)
_TOP_ENTROPY_RULE = CelRule(
    "!has(self.topEntropyFraction) || !has(self.trustRegion) || !has(self.trustRegion.gmpo)",
    "GMPO's ratio is that of the whole response: remove it, or choose another trustRegion",
    field_path=".topEntropyFraction",
)
_GROUP_SIZE_RULE = CelRule(
    "!(self.advantage.center in ['Group', 'LeaveOneOut', 'OptimalToken']) || self.samplesPerPrompt >= 2",
    "compares a prompt's samples: set samplesPerPrompt to at least 2, or center to Batch",
    field_path=".advantage.center",
)
_KL_IN_REWARD_RULE = CelRule(
    "self.kl.placement == 'Reward' || (has(self.kl.fixed) && self.kl.fixed.coefficient == 0.0)",
    "RLOO subtracts the KL penalty from the sequence's reward: set Reward",
    field_path=".kl.placement",
)
_ONE_WARMUP_RULE = CelRule(
    "self.warmupSteps == 0 || self.warmupFraction == 0.0",
    "warmupSteps gives the warm-up too: remove one of them",
    field_path=".warmupFraction",
)

_RESERVED_NAME_RULES = [
    CelRule(
        f"self.name != {cel_string(name)}",
        f"this name stands for {meaning}: choose another",
        field_path=".name",
    )
    for name, meaning in RESERVED_NAMES.items()
]
_RESERVED_LABEL_LIST = ", ".join(cel_string(label) for label in RESERVED_LABELS)
_RESERVED_FOLDER_LIST = ", ".join(cel_string(folder) for folder in RESERVED_FOLDERS)

_TEMPLATE_RULE = CelRule(
    "!has(self.template) || !has(self.format) || !has(self.format.tokens)",
    "token ids have no text for a template: remove it, or set format.text or format.chat",
    field_path=".template",
)

_DATASET_RULES = [
    *exactly_one_of(["source", "mixture"], "source: {path: train.jsonl}"),
    CelRule(
        "!has(self.mixture) || !has(self.limit)",
        "each entry of a mixture has its own limit: set that",
        field_path=".limit",
    ),
    CelRule(
        "!has(self.mixture) || (has(self.format) && has(self.format.chat)) || "
        "self.mixture.all(entry, !has(entry.systemPrompt))",
        "only rows of chat messages have a system message: set format.chat, or remove systemPrompt",
        field_path=".mixture",
    ),
    CelRule(
        "!has(self.streaming) || !has(self.mixture)",
        STREAMS_ONE_SOURCE,
        field_path=".mixture",
    ),
    CelRule(
        "!has(self.streaming) || !has(self.source) || !has(self.source.huggingFace)",
        STREAMS_FILES,
        field_path=".source",
    ),
    _TEMPLATE_RULE,
]

_BETA_RULE = CelRule("!has(self.beta) || self.divergence == 'JensenShannon'", BETA_REMEDY, field_path=".beta")

_WHOLE_PAIRS_RULE = CelRule(
    "!has(self.minibatchSequences) || (self.minibatchSequences % 2 == 0 && "
    "2 * self.promptsPerStep % self.minibatchSequences == 0)",
    "must be even and divide 2 x promptsPerStep",
    field_path=".minibatchSequences",
)

_CODE_TIME_RULE = CelRule(
    "!has(self.verifier) || !has(self.verifier.code) "
    "|| self.verifier.code.secondsPerResponse < self.timeoutSeconds",
    "must be below timeoutSeconds: lower it, or raise timeoutSeconds",
    field_path=".verifier.code.secondsPerResponse",
)

_HAS_SANDBOX_SERVER = "has(self.verifier) && has(self.verifier.code) && has(self.verifier.code.server)"

_MODEL_RULES: dict[type[BaseModel], list[CelRule]] = {
    KL: _KL_RULES,
    RLOOSpec: [_KL_IN_REWARD_RULE],
    OnlineDPOSpec: [_WHOLE_PAIRS_RULE],
    XPOSpec: [_WHOLE_PAIRS_RULE],
    OnPolicyDistillationSpec: [
        CelRule(
            "self.kl.placement == 'Reward' && self.kl.estimator == 'K1' && "
            "has(self.kl.fixed) && self.kl.fixed.coefficient > 0.0",
            KL_REMEDY,
            field_path=".kl",
        )
    ],
    TeacherDistribution: [_BETA_RULE],
    Hint: [
        CelRule(
            "self.message == 'System' || self.template.contains('{prompt}')",
            HINT_REMEDY,
            field_path=".template",
        )
    ],
    PPOSpec: [
        CelRule(
            "self.advantage.center != 'LeaveOneOut'",
            "PPO's advantages are per token, so no sample can be left out: set Batch, Group or None",
            field_path=".advantage.center",
        )
    ],
    AdvantageNormalization: [
        CelRule(
            "self.scale == 'None' || self.center in ['Group', 'LeaveOneOut'] || "
            "(self.scale in ['Batch', 'BatchOfReturns'] && self.center == 'Batch')",
            "needs a center over the same samples: set such a center, or scale to None",
            field_path=".scale",
        ),
        CelRule(
            "!has(self.passAtK) || (self.center == 'Group' && self.scale in ['Group', 'None'])",
            "compares the best of subsets of a group: set center to Group and scale to Group or None",
            field_path=".passAtK",
        ),
    ],
    CritiqueRevision: [
        _contains_placeholder("critique", "response"),
        _contains_placeholder("revision", "response"),
    ],
    PairwiseComparison: [_contains_placeholder("prompt", "first"), _contains_placeholder("prompt", "second")],
    Judge: [_contains_placeholder("prompt", "response")],
    GenerateSpec: [
        CelRule(
            "self.keep == 'All' || self.samplesPerPrompt >= 2",
            "keep chooses among a prompt's samples: set at least 2",
            field_path=".samplesPerPrompt",
        ),
        CelRule(
            "!has(self.compare) || self.samplesPerPrompt % 2 == 0",
            "samples are compared in pairs: set an even number",
            field_path=".samplesPerPrompt",
        ),
        CelRule(
            "!has(self.compare) || self.keep == 'All'",
            "the comparison chooses, not the rewards: set All, or remove compare",
            field_path=".keep",
        ),
    ],
    AnnotateSpec: [
        CelRule(
            "!has(self.lowest) || !has(self.highest) || self.lowest <= self.highest",
            "must not be above highest",
            field_path=".lowest",
        ),
        *(
            CelRule(
                f"!self.roundToIntegers || !has(self.{name}) || self.{name} == double(int(self.{name}))",
                "must be a whole number where scores are rounded to whole numbers",
                field_path=f".{name}",
            )
            for name in ("lowest", "highest")
        ),
    ],
    ImportanceCorrection: [
        CelRule(
            "(has(self.low) ? self.low : (self.outside == 'Mask' ? 0.5 : 0.0)) < self.high",
            "must be below high",
            field_path=".low",
        )
    ],
    WeightBounds: [CelRule("self.low < self.high", "must be below high", field_path=".low")],
    ClipCov: [CelRule("self.low < self.high", "must be below high", field_path=".low")],
    PromptDataset: [
        *_DATASET_RULES,
        CelRule(
            "!has(self.streaming) || !has(self.curriculum)",
            STREAMS_ALL_PROMPTS,
            field_path=".curriculum",
        ),
    ],
    PromptCurriculum: [
        CelRule("has(self.easy) || has(self.hard)", NO_POOL),
        CelRule(
            "!has(self.easy) || !has(self.hard) || self.hard.atMost < self.easy.atLeast",
            OVERLAPPING_POOLS,
            field_path=".hard.atMost",
        ),
    ],
    DemonstrationDataset: _DATASET_RULES,
    PreferenceDataset: _DATASET_RULES,
    RatingDataset: _DATASET_RULES,
    UnpairedDataset: _DATASET_RULES,
    CheckpointSource: exactly_one_of(PARENT_MEMBERS, PARENT_EXAMPLE),
    VolumeFileSource: exactly_one_of(["path", "paths"], "path: train.parquet"),
    ValidationSampling: [
        CelRule("self.passAt.all(k, k <= self.samplesPerPrompt)", TOO_FEW_SAMPLES, field_path=".passAt"),
    ],
    EarlyStoppingTarget: exactly_one_of(["atLeast", "atMost"], "atLeast: 0.5"),
    SamplingSpec: [
        CelRule(
            "self.minTokens <= self.maxTokens",
            "must be at most maxTokens",
            field_path=".minTokens",
        )
    ],
    Overlap: [
        CelRule(
            "self.parallelScoring || !self.scoreOnArrival",
            NEEDS_COMPLETE_BATCH,
            field_path=".parallelScoring",
        ),
    ],
    MismatchGateSpec: [
        CelRule(
            "!has(self.failMean) || self.action == 'Warn'",
            "action Fail fails above mean: remove it, or set action to Warn",
            field_path=".failMean",
        ),
        CelRule(
            "!has(self.failMean) || self.failMean >= self.mean",
            "must be at least mean",
            field_path=".failMean",
        ),
    ],
    Rollout: [
        *inference_server_rules(),
        *branch_rules(),
        agent_placement_rule(),
        CelRule(
            "self.minReplicas <= self.replicas",
            "must be at most replicas",
            field_path=".minReplicas",
        ),
        CelRule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "workers without pods of their own have no template: set trainer.podTemplate",
            field_path=".podTemplate",
        ),
        CelRule(
            "!has(self.processesPerPod) || self.placement == 'Own'",
            "workers without pods of their own have no ranks in them: set trainer.processesPerPod",
            field_path=".processesPerPod",
        ),
        _divisor_rule(
            "(has(self.engine.torch) ? self.engine.torch.tensorParallel : 1)", "engine.torch.tensorParallel"
        ),
    ],
    ConstantSchedule: [_ONE_WARMUP_RULE],
    LinearSchedule: [_ONE_WARMUP_RULE],
    CosineSchedule: [_ONE_WARMUP_RULE],
    Trainer: [
        *_parallelism_rules(),
        *_optimizer_rules(),
        _quantization_rule(),
        _divisor_rule("self.ranks", "ranks"),
    ],
    Muon: [
        CelRule(
            "has(self.learningRate) || self.learningRateAdjustment == 'MatchRmsAdamW'",
            RATE_IS_REQUIRED,
            field_path=".learningRate",
        ),
    ],
    Teacher: [_divisor_rule("self.ranks", "ranks")],
    MegatronBackendSpec: [
        CelRule("self.precision != 'Float16'", FLOAT16_MESSAGE, field_path=".precision"),
    ],
    Critic: [
        CelRule(
            "self.headInit != 'RewardModel' || !has(self.model) || !has(self.model.config)",
            "a model with random weights has no reward head: set Zero",
            field_path=".headInit",
        ),
    ],
    Reference: [
        CelRule(
            "self.replicas == 1 || self.placement == 'Own'",
            "a reference without processes of its own has no replicas: write 1, or set placement to Own",
            field_path=".replicas",
        ),
        CelRule(
            "self.ranks == 1 || self.placement == 'Own'",
            "a reference without processes of its own has no ranks: write 1, or set placement to Own",
            field_path=".ranks",
        ),
        CelRule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "a reference without a pod of its own has no template: set trainer.podTemplate",
            field_path=".podTemplate",
        ),
        CelRule(
            "!has(self.processesPerPod) || self.placement == 'Own'",
            "a reference without a pod of its own has no ranks in it: set trainer.processesPerPod",
            field_path=".processesPerPod",
        ),
        _divisor_rule("self.ranks", "ranks"),
        CelRule(
            "!has(self.model) || self.placement != 'AdapterOff'",
            "a reference AdapterOff uses the policy's own first weights: remove it",
            field_path=".model",
        ),
    ],
    JudgeScale: [CelRule("self.highest > self.lowest", SCALE_IS_EMPTY, field_path=".highest")],
    CodeVerifier: [
        *(
            CelRule(
                f"self.kind != 'InputOutput' || !has(self.{field})",
                NO_EFFECT_ON_INPUT_OUTPUT,
                field_path=f".{field}",
            )
            for field in ("setupColumn", "entryPointColumn")
        ),
        CelRule(
            f"!has(self.server) || self.parallelTests == {DEFAULT_PARALLEL_TESTS}",
            NO_EFFECT_WITH_SERVER,
            field_path=".parallelTests",
        ),
    ],
    EnvironmentSpec: [
        *exactly_one_of(list(map(to_camel, ENVIRONMENT_KINDS))),
        CelRule(
            "self.observation != 'Chat' || self.firstObservation != 'Insert'",
            NO_CHAT_BEFORE_TURN,
            field_path=".firstObservation",
        ),
    ],
    LinearLength: [
        CelRule(
            "self.zeroTokens > self.fullTokens",
            "must be above fullTokens",
            field_path=".zeroTokens",
        ),
    ],
    Reward: [
        *exactly_one_of([to_camel(name) for name in REWARD_SOURCES]),
        CelRule(
            "has(self.model) || self.placement == 'Own'",
            "is for a single model; other sources run in their own process: set Own",
            field_path=".placement",
        ),
        CelRule(
            "self.attributes.size() == 0 || has(self.model) || has(self.ensemble)",
            "is for models with several scores: remove it",
            field_path=".attributes",
        ),
        CelRule(
            "!has(self.onError) || self.onError == 'Retry' || !(has(self.model) || has(self.ensemble))",
            NO_ERRORS_OF_ITS_OWN,
            field_path=".onError",
        ),
        CelRule(
            "!has(self.concurrency) || !(has(self.model) || has(self.ensemble))",
            NO_CALLS_OF_ITS_OWN,
            field_path=".concurrency",
        ),
        CelRule(
            "self.egress.size() == 0 || has(self.function) || has(self.plugin) || has(self.http) || "
            f"has(self.judge) || ({_HAS_SANDBOX_SERVER})",
            NO_CODE_OF_ITS_OWN,
            field_path=".egress",
        ),
        CelRule(
            "self.scope == 'Sample' || has(self.function) || has(self.plugin)", NO_GROUPS, field_path=".scope"
        ),
        _CODE_TIME_RULE,
        *_defaults_beside("episode", NOT_OF_EPISODES, NO_PROCESS_OF_ITS_OWN),
        *_defaults_beside("policyJudge", NOT_OF_POLICY_JUDGES, JUDGED_BY_ROLLOUT_WORKERS),
        CelRule(
            "!has(self.podTemplate) || self.placement == 'Own'",
            "a reward WithCritic has no pod of its own: set critic.podTemplate",
            field_path=".podTemplate",
        ),
        CelRule(
            "!has(self.processesPerPod) || self.placement == 'Own'",
            "a reward WithCritic has no pod of its own: set critic.processesPerPod",
            field_path=".processesPerPod",
        ),
        _divisor_rule("self.ranks", "ranks"),
        CelRule(
            "self.replicas == 1 || self.placement == 'Own'",
            "a reward WithCritic has no processes of its own: write 1, or set placement to Own",
            field_path=".replicas",
        ),
        CelRule(
            "self.ranks == 1 || self.placement == 'Own'",
            "a reward WithCritic has no processes of its own: write 1, or set placement to Own",
            field_path=".ranks",
        ),
        CelRule(
            "self.ranks == 1 || has(self.model) || has(self.ensemble)",
            "only a model or an ensemble has weights to divide: write 1, or set replicas",
            field_path=".ranks",
        ),
        CelRule(
            f"self.ranks == 1 || self.name.size() <= {MAX_SHARDED_NAME}",
            f"with ranks above 1 the limit is {MAX_SHARDED_NAME} characters, since the names of the "
            "processes contain it",
            field_path=".name",
        ),
        *_RESERVED_NAME_RULES,
    ],
    ValidationScore: [
        *exactly_one_of([to_camel(name) for name in SCORE_SOURCES]),
        _CODE_TIME_RULE,
        CelRule(
            f"self.egress.size() == 0 || !has(self.verifier) || ({_HAS_SANDBOX_SERVER})",
            VERIFIER_CONNECTS_NOWHERE,
            field_path=".egress",
        ),
        CelRule("self.scope == 'Sample' || has(self.function)", SCORES_NO_GROUPS, field_path=".scope"),
        CelRule(
            "!has(self.policyJudge) || !has(self.concurrency)",
            JUDGED_BY_ROLLOUT_WORKERS,
            field_path=".concurrency",
        ),
        CelRule(
            "!has(self.policyJudge) || self.egress.size() == 0",
            JUDGED_BY_ROLLOUT_WORKERS,
            field_path=".egress",
        ),
        *_RESERVED_NAME_RULES,
    ],
    TrackerSpec: exactly_one_of(
        [field_alias(TrackerSpec, name) for name in TRACKER_MEMBERS], "tensorBoard: {}"
    ),
    TrackioTracker: [
        CelRule("!has(self.serverUrl) || !has(self.space)", ONE_TRACKIO_DESTINATION, field_path=".space"),
        CelRule(
            "!has(self.serverUrl) || !self.serverUrl.contains('write_token')",
            NO_TRACKIO_TOKEN,
            field_path=".serverUrl",
        ),
    ],
    EvaluateSpec: [
        CelRule(
            "self.checkpoints.all(checkpoint, checkpoint.step > self.step)",
            NOT_LATER,
            field_path=".checkpoints",
        ),
    ],
    Validation: [
        CelRule("has(self.data) || self.sets.size() > 0", NOTHING_VALIDATED, field_path=".data"),
        CelRule("has(self.data) || !has(self.sampling)", ROWS_ARE_IN_SETS, field_path=".sampling"),
        CelRule("has(self.data) || !has(self.groupBy)", ROWS_ARE_IN_SETS, field_path=".groupBy"),
        *_held_out_data_rules(),
        CelRule(
            "!has(self.sampling) || self.sets.all(s, !self.sampling.scores.exists(c, c.name == s.name))",
            SET_NAMED_AS_SCORE,
            field_path=".sets",
        ),
    ],
    ValidationSet: [
        *exactly_one_of(["data", "preset"], "preset: {benchmark: Gsm8k}"),
        CelRule(
            "!has(self.preset) || !has(self.sampling) || "
            f"!self.sampling.scores.exists(c, c.name == {cel_string(PRESET_SCORE)})",
            NAMED_AS_PRESET_SCORE,
            field_path=".sampling.scores",
        ),
        CelRule(f"self.name != {cel_string(REWARD_METRICS)}", SET_NAMED_REWARD, field_path=".name"),
        *_held_out_data_rules(),
        CelRule(
            "!has(self.sampling) || self.sampling.scores.all(c, "
            f"self.name.size() + 1 + c.name.size() <= {MAX_SCORE_PROCESS_NAME})",
            LONG_SCORE_NAME,
            field_path=".sampling.scores",
        ),
    ],
    EarlyStopping: [
        CelRule(
            "self.metric.startsWith('val/')",
            "must name a validation metric, such as val/loss: they begin with val/",
            field_path=".metric",
        ),
        CelRule("has(self.target) || has(self.patience)", NOTHING_STOPS),
    ],
    IpBlock: [
        CelRule(
            "!(self.cidr.startsWith('169.254.') && int(self.cidr.split('/')[1]) >= 16) && "
            "self.cidr != 'fd00:ec2::254/128' && "
            "!(self.cidr.matches('^fe[89ab][0-9a-f]:') && int(self.cidr.split('/')[1]) >= 10)",
            SERVES_METADATA,
            field_path=".cidr",
        )
    ],
    EgressPort: [
        CelRule("!has(self.endPort) || self.endPort >= self.port", ENDS_BEFORE_START, field_path=".endPort")
    ],
    AgentSpec: [*exactly_one_of(AGENT_KINDS, AGENT_EXAMPLE), *agent_process_rules()],
    ExternalAgents: [external_agents_rule()],
    McpServerSpec: exactly_one_of(MCP_TRANSPORTS, MCP_EXAMPLE),
    ToolCallsSpec: tool_calls_rules(),
    EgressRule: exactly_one_of(
        [field_alias(EgressRule, name) for name in EGRESS_DESTINATIONS], "anywhere: {}"
    ),
    PodMetadata: [
        CelRule(
            "!has(self.labels) || "
            f"self.labels.all(key, !(key in [{_RESERVED_LABEL_LIST}]) && "
            f"!key.startsWith({cel_string(RESERVED_LABEL_PREFIX)}))",
            f"{RESERVED_LABEL_PREFIX}*, {' and '.join(RESERVED_LABELS)} are set by kubealign itself: "
            "remove them",
            field_path=".labels",
        )
    ],
    EnvSource: exactly_one_of(["secretKeyRef", "configMapKeyRef", "fieldRef"]),
    EnvVariable: [
        *exactly_one_of(["value", "valueFrom"], 'value: ""'),
        CelRule(
            f"!self.name.startsWith({cel_string(RESERVED_VARIABLE_PREFIX)})",
            "is set by kubealign itself: remove it",
            field_path=".name",
        ),
    ],
    Volume: [
        *exactly_one_of(list(map(to_camel, VOLUME_TYPES))),
        CelRule(
            f"!self.name.startsWith({cel_string(RESERVED_VOLUME_PREFIX)})",
            f"names that begin with {RESERVED_VOLUME_PREFIX} are taken: choose another",
            field_path=".name",
        ),
    ],
    VolumeMount: [
        CelRule(
            f"[{_RESERVED_FOLDER_LIST}].all(own, "
            "self.mountPath != own && !self.mountPath.startsWith(own + '/'))",
            f"must not be or lie below {', '.join(RESERVED_FOLDERS)}: choose another folder",
            field_path=".mountPath",
        )
    ],
}


def model_rules(root: type[BaseModel]) -> Mapping[type[BaseModel], Sequence[CelRule]]:
    """Return the rules of every model from the root down."""
    return {
        model: union_rules(model)
        if issubclass(model, SpecUnion)
        else [*_inherited_rules(model), *_rules_of_classes(model)]
        for model in set(_walk_models(root))
    }


def _rules_of_classes(model: type[BaseModel]) -> list[CelRule]:
    """Return the rules of a model and of its base classes: it has their fields, and their checks."""
    return [rule for base in reversed(model.__mro__) for rule in _MODEL_RULES.get(base, [])]


def _inherited_rules(model: type[BaseModel]) -> list[CelRule]:
    if not issubclass(model, OnPolicySpec):
        return []
    rules = [_MINIBATCH_RULE, _ADAPTIVE_KL_RULE, _GROUP_SIZE_RULE, _PASS_AT_K_RULE]
    rules += _TOKEN_ADVANTAGE_RULES if model.token_advantages else []
    rules += [_TRUST_REGION_RULE, _TOP_ENTROPY_RULE] if issubclass(model, ClippedRatioSpec) else []
    rules += [] if model.token_baseline else [_TOKEN_BASELINE_RULE]
    if issubclass(model, GroupRelativeSpec):
        rules += [_SEPARATE_REWARDS_RULE, _REWARDS_OF_TOKEN_BASELINE_RULE]
    return rules


def _walk_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        below = nested_model(item_type(field.annotation) or field.annotation)
        if below is not None:
            yield from _walk_models(below)
