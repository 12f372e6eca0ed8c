"""CEL rules that span several fields of a spec, equivalent to `kubealign.spec.cross_field_validation`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from kubealign.spec.algorithms import (
    Algorithm,
    AlgorithmSpec,
    CustomOfflineSpec,
    EvaluateSpec,
    GenerateSpec,
    OnPolicySpec,
    Requirement,
    ResultKind,
    RewardModelSpec,
    RewardObjective,
    RowKind,
)
from kubealign.spec.base import field_alias
from kubealign.spec.cross_field_validation import (
    CONTRADICTS_OVERLAP,
    HINT_NEEDS_CHAT,
    HINT_NEEDS_TEXT,
    JUDGES_HAVE_WORKERS,
    NATIVE_RANK_TOO_LARGE,
    NO_CRITIC_TO_TRAIN,
    NO_JUDGE_OF_DATA,
    NO_MEAN_REWARD,
    NO_NATIVE_ADAPTER,
    NO_NATIVE_DORA,
    NO_SAMPLES_OF_STEPS,
    NO_STEPS_TO_OVERLAP,
    NO_TEACHERS_TO_NAME,
    NO_WORKFLOW_GIVES_REWARDS,
    OTHER_AGENT_REWARD,
    OTHER_ENVIRONMENT_REWARD,
    REVISIONS_ARE_SCORED_ALONE,
    REWARD_SOURCES_NEED_MIXTURE,
    RUNS_NO_WORKFLOW,
    STREAMS_NO_HINTS,
    STREAMS_NO_TOKENIZER_TEXTS,
    STREAMS_WITHOUT_END,
    TEACHER_AND_TEACHERS,
    TEACHER_IS_NO_REFERENCE,
    TEACHERS_ARE_NO_REFERENCE,
    TEACHERS_NEED_MIXTURE,
    UNSCORED_SOURCE,
    UNUSED_TEACHER,
    checkpoint_source_refusal,
    missing_length_message,
    reference_sample_remedy,
    scores_given_rows_message,
    streaming_refusal,
    unusable_teachers_message,
    unused_teacher_message,
)
from kubealign.spec.field_lookup import nested_model
from kubealign.spec.sections.data import READS_ALL_ROWS, Data
from kubealign.spec.sections.engines import MAX_NATIVE_ADAPTER_RANK, Engine
from kubealign.spec.sections.rewards import DEFAULT_REWARD
from kubealign.spec.sections.rollout import EXTERNAL_ENGINES, Rollout
from kubealign.spec.sections.training import Trainer
from kubealign.spec.validation_checks import NO_RESPONSES_OF_REWARD_MODEL
from kubealign_operator.crd.branch_rules import branch_algorithm_rule
from kubealign_operator.crd.cel import CelRule, cel_string, implies
from kubealign_operator.crd.colocation_rules import (
    DRAINS_CONDITION,
    colocated_algorithm_rules,
    colocated_rollout_rules,
)
from kubealign_operator.crd.evaluation_rules import evaluation_rules
from kubealign_operator.crd.mixture_rules import mixture_rules, routing_replay_algorithm_rules
from kubealign_operator.crd.tool_call_rules import tool_call_rules
from kubealign_operator.crd.validation_rules import held_out_rules, validation_rules


def cross_field_rules() -> Iterator[CelRule]:
    """Yield the rules of the whole spec, each with the field that its message is about."""
    for member, field in Algorithm.model_fields.items():
        model = nested_model(field.annotation)
        assert model is not None and issubclass(model, AlgorithmSpec)
        name, algorithm_is_set = (
            field_alias(Algorithm, member),
            f"has(self.algorithm.{field_alias(Algorithm, member)})",
        )
        if model is EvaluateSpec:
            yield from evaluation_rules(algorithm_is_set)
        else:
            yield _length_rule(name, algorithm_is_set, model)
        yield from _data_rules(name, algorithm_is_set, model)
        yield from _reward_rules(name, algorithm_is_set, model)
        yield from _curriculum_rules(name, algorithm_is_set, model)
        yield from _streaming_rules(name, algorithm_is_set, model)
        refusal = checkpoint_source_refusal(name, model)
        if refusal is not None:
            source_rule = implies(algorithm_is_set, "!has(self.checkpoint.from)")
            yield CelRule(source_rule, refusal, field_path=".checkpoint.from")
        yield from _critic_rules(name, algorithm_is_set, has_critic=model.critic)
        yield from _reference_rules(name, algorithm_is_set, model)
        yield from _rollout_rules(name, algorithm_is_set, model)
        yield from colocated_algorithm_rules(name, algorithm_is_set, model)
        yield from routing_replay_algorithm_rules(name, algorithm_is_set, model)
        if model.reference_sample:
            yield from _reference_sample_rules(name, algorithm_is_set)
        if model.rated:
            yield _ratings_rule(name, algorithm_is_set)
        if getattr(model, "data", None) == "demonstrations" and not model.turns:
            yield _last_turn_rule(name, algorithm_is_set)
        if not model.reads_token_ids:
            yield _text_rows_rule(name, algorithm_is_set, str(getattr(model, "data", "")))
        if "hint" in model.model_fields:
            yield from _hint_rules(f"{algorithm_is_set} && has(self.algorithm.{name}.hint)", name)
        if model is GenerateSpec:
            yield _selection_rule(name, algorithm_is_set)
        yield from _teacher_rules(name, algorithm_is_set, model)
        yield from _overlap_rules(name, algorithm_is_set, model)
    yield from _adapter_rules()
    yield from _several_teachers_rules()
    yield from _reward_sources_rules()
    yield from _episode_reward_rules()
    yield from _policy_judge_rules()
    yield _streamed_tokenizer_rule()
    yield from colocated_rollout_rules()
    yield from _in_flight_rules()
    yield from mixture_rules()
    yield from tool_call_rules()
    yield branch_algorithm_rule()
    yield CelRule(
        "!self.checkpoint.recordBatches || !has(self.rollout.scoring) || self.rollout.scoring != 'OnArrival'",
        "recorded batches must repeat bit for bit: write WholeBatch, or remove checkpoint.recordBatches",
        field_path=".rollout.scoring",
    )
    yield CelRule(
        "!has(self.overlap) || self.overlap.scoreOnArrival || !has(self.rollout.scoring) || "
        "self.rollout.scoring != 'OnArrival'",
        CONTRADICTS_OVERLAP,
        field_path=".rollout.scoring",
    )
    yield from _name_rules()
    yield from validation_rules()


def _in_flight_rules() -> Iterator[CelRule]:
    for member in EXTERNAL_ENGINES:
        name = field_alias(Engine, member)
        yield CelRule(
            implies(f"has(self.rollout.engine.{name})", DRAINS_CONDITION),
            f"{name} cannot tell which weights made which token: write Drain, or set rollout.engine.torch",
            field_path=".rollout.refit.inFlight",
        )


def _reference_sample_rules(name: str, algorithm_is_set: str) -> Iterator[CelRule]:
    engine = "self.rollout.engine"
    conditions = {
        ".rollout.placement": ("self.rollout.placement == 'Own'", "set Own"),
        ".rollout.engine": (f"has({engine}.torch)", "set torch"),
        ".rollout.engine.torch.tensorParallel": (
            f"(!has({engine}.torch) || {engine}.torch.tensorParallel == 1)",
            "write 1",
        ),
    }
    for path, (condition, remedy) in conditions.items():
        message = reference_sample_remedy(name, remedy)
        yield CelRule(implies(algorithm_is_set, condition), message, field_path=path)


def _length_rule(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> CelRule:
    has_epochs = "max_epochs" in model.model_fields
    epochs = f" || has(self.algorithm.{name}.maxEpochs)" if has_epochs else ""
    return CelRule(
        implies(algorithm_is_set, f"has(self.maxSteps){epochs}"),
        missing_length_message(name, has_epochs=has_epochs),
        field_path=".maxSteps",
    )


def _data_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    if not model.makes.is_model:
        plain = " && ".join(
            _equality_conditions("self.trainer", Trainer().model_dump(mode="json", by_alias=True))
        )
        yield CelRule(
            implies(algorithm_is_set, f"({plain})"),
            f"{name} produces no weights: remove it",
            field_path=".trainer",
        )
    if model is EvaluateSpec:
        return
    if model.makes is ResultKind.DATA:
        yield CelRule(
            implies(algorithm_is_set, "!has(self.validation)"),
            f"{name} produces no weights to validate: remove it",
            field_path=".validation",
        )
        rows = str(getattr(model, "data", ""))
        yield _learns_from(name, algorithm_is_set, rows)
        yield CelRule(
            implies(f"{algorithm_is_set} && has(self.data.{rows})", f"!has(self.data.{rows}.mixture)"),
            f"{name} reads {READS_ALL_ROWS}",
            field_path=f".data.{rows}.mixture",
        )
    elif model is CustomOfflineSpec:
        for kind in RowKind:
            of_kind = f"{algorithm_is_set} && self.algorithm.{name}.rows == {cel_string(kind.value)}"
            yield from _dataset_rules(name, of_kind, kind.value.lower(), scores=False)
    elif model.samples and not model.online:
        yield _learns_from(name, algorithm_is_set, str(getattr(model, "data", "")))
        yield from held_out_rules(
            algorithm_is_set, "has({rows}.data.prompts)", f"{name} validates on prompts", "data"
        )
    elif model is RewardModelSpec:
        objective = f"self.algorithm.{name}.objective"
        has_ratings = f"(has({objective}.regression) || has({objective}.stepClassification))"
        yield from _dataset_rules(
            name,
            f"{algorithm_is_set} && {has_ratings}",
            _dataset_kind(RewardObjective, "regression"),
            scores=True,
        )
        yield from _dataset_rules(
            name,
            f"{algorithm_is_set} && !{has_ratings}",
            _dataset_kind(RewardObjective, "bradley_terry"),
            scores=True,
        )
        yield from held_out_rules(
            algorithm_is_set, "!has({rows}.sampling)", NO_RESPONSES_OF_REWARD_MODEL, "sampling"
        )
        yield CelRule(
            implies(
                f"{algorithm_is_set} && has(self.validation)",
                "!self.validation.sets.exists(s, has(s.preset))",
            ),
            NO_RESPONSES_OF_REWARD_MODEL,
            field_path=".validation.sets",
        )
    else:
        yield from _dataset_rules(name, algorithm_is_set, str(getattr(model, "data", "")), scores=False)


def _dataset_kind(union: type[BaseModel], member: str) -> str:
    model = nested_model(union.model_fields[member].annotation)
    return str(getattr(model, "data", ""))


def _learns_from(name: str, algorithm_is_set: str, kind: str) -> CelRule:
    return CelRule(
        implies(algorithm_is_set, f"has(self.data.{kind})"),
        f"{name} learns from {kind}: set data.{kind}",
        field_path=".data",
    )


def _dataset_rules(name: str, algorithm_is_set: str, kind: str, *, scores: bool) -> Iterator[CelRule]:
    yield _learns_from(name, algorithm_is_set, kind)
    allowed = [kind] if scores or kind == "prompts" else [kind, "prompts"]
    condition = " || ".join(f"has({{rows}}.data.{rows})" for rows in allowed)
    yield from held_out_rules(
        algorithm_is_set, condition, f"{name} validates on {' or '.join(allowed)}", "data"
    )
    if len(allowed) > 1:
        yield from held_out_rules(
            algorithm_is_set,
            "!has({rows}.data.prompts) || has({rows}.sampling)",
            f"prompts alone have no loss: set it, or validate on {kind}",
            "sampling",
        )


def _reward_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    use = model.rewards
    if use is Requirement.NEEDED:
        message = f"{name} needs rewards: name at least one"
        yield CelRule(implies(algorithm_is_set, "self.rewards.size() > 0"), message, field_path=".rewards")
    if use is Requirement.NONE:
        remedy = "remove them (validation.sampling.scores measures samples)"
        message = f"{name} does not use rewards: {remedy}"
        yield CelRule(implies(algorithm_is_set, "self.rewards.size() == 0"), message, field_path=".rewards")
    elif not model.samples:
        yield _sample_scope_rule(algorithm_is_set, scores_given_rows_message(name))
    elif "revise" in model.model_fields:
        revises = f"{algorithm_is_set} && has(self.algorithm.{name}.revise)"
        yield _sample_scope_rule(revises, REVISIONS_ARE_SCORED_ALONE)


def _sample_scope_rule(condition: str, message: str) -> CelRule:
    """Return the rule that no reward scores groups under a condition."""
    scores_samples = "self.rewards.all(r, r.scope == 'Sample')"
    return CelRule(implies(condition, scores_samples), message, field_path=".rewards")


#: Condition that the prompts are a mixture.
_HAS_PROMPT_MIXTURE = "has(self.data.prompts) && has(self.data.prompts.mixture)"


def _episode_reward_rules() -> Iterator[CelRule]:
    """Yield the rules of rewards that a workflow gives."""
    no_workflow = " || ".join(
        f"has(self.algorithm.{field_alias(Algorithm, member)})"
        for member, field in Algorithm.model_fields.items()
        if not getattr(nested_model(field.annotation), "runs_workflows", False)
    )
    yield CelRule(
        implies(no_workflow, "self.rewards.all(r, !has(r.episode))"),
        f"the algorithm {RUNS_NO_WORKFLOW}",
        field_path=".rewards",
    )
    yield CelRule(
        "(has(self.rollout.workflow) && (has(self.rollout.workflow.function) || "
        "has(self.rollout.workflow.environment) || has(self.rollout.workflow.agent))) || "
        "self.rewards.all(r, !has(r.episode))",
        NO_WORKFLOW_GIVES_REWARDS,
        field_path=".rewards",
    )
    yield CelRule(
        "!has(self.rollout.workflow) || !has(self.rollout.workflow.environment) || self.rewards.all(r, "
        "!has(r.episode) || r.episode.name == self.rollout.workflow.environment.reward)",
        OTHER_ENVIRONMENT_REWARD,
        field_path=".rewards",
    )
    yield CelRule(
        "!has(self.rollout.workflow) || !has(self.rollout.workflow.agent) || self.rewards.all(r, "
        f"!has(r.episode) || r.episode.name == '{DEFAULT_REWARD}')",
        OTHER_AGENT_REWARD,
        field_path=".rewards",
    )


def _policy_judge_rules() -> Iterator[CelRule]:
    """Yield the rules of rewards and validation scores by the policy's judgements."""
    reasons = {
        JUDGES_HAVE_WORKERS: "self.rollout.placement != 'Own'",
        NO_JUDGE_OF_DATA: " || ".join(
            f"has(self.algorithm.{field_alias(Algorithm, member)})"
            for member, field in Algorithm.model_fields.items()
            if getattr(nested_model(field.annotation), "makes", None) is ResultKind.DATA
        ),
    }
    scores = "scores.all(s, !has(s.policyJudge))"
    for message, condition in reasons.items():
        yield CelRule(
            implies(condition, "self.rewards.all(r, !has(r.policyJudge))"), message, field_path=".rewards"
        )
        yield CelRule(
            implies(
                condition,
                "!has(self.validation) || ((!has(self.validation.sampling) || "
                f"self.validation.sampling.{scores}) && "
                f"self.validation.sets.all(e, !has(e.sampling) || e.sampling.{scores}))",
            ),
            message,
            field_path=".validation",
        )


def _reward_sources_rules() -> Iterator[CelRule]:
    """Yield the rules of the sources of prompts that a reward scores."""
    yield CelRule(
        f"({_HAS_PROMPT_MIXTURE}) || has(self.algorithm.evaluate) || self.rewards.all(r, !has(r.sources))",
        f"sources of a reward: {REWARD_SOURCES_NEED_MIXTURE}",
        field_path=".rewards",
    )
    yield CelRule(
        implies(
            _HAS_PROMPT_MIXTURE,
            "self.rewards.all(r, !has(r.sources) || "
            "r.sources.all(source, self.data.prompts.mixture.exists(entry, entry.name == source)))",
        ),
        "each of a reward's sources must be the name of an entry of data.prompts.mixture",
        field_path=".rewards",
    )
    # One rule for all algorithms: the API server limits the estimated cost of all rules together.
    needs_rewards = " || ".join(
        f"has(self.algorithm.{field_alias(Algorithm, member)})"
        for member, field in Algorithm.model_fields.items()
        if getattr(nested_model(field.annotation), "rewards", None) is Requirement.NEEDED
    )
    yield CelRule(
        implies(
            f"({needs_rewards}) && self.rewards.size() > 0 && {_HAS_PROMPT_MIXTURE}",
            "self.data.prompts.mixture.all(entry, "
            "self.rewards.exists(r, !has(r.sources) || entry.name in r.sources))",
        ),
        UNSCORED_SOURCE,
        field_path=".data.prompts.mixture",
    )


def _curriculum_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    curriculum = "has(self.data.prompts) && has(self.data.prompts.curriculum)"
    if not model.online:
        condition, problem = f"!({curriculum})", f"{name} {NO_SAMPLES_OF_STEPS}"
    elif model.rewards is Requirement.ALLOWED:
        condition, problem = f"!({curriculum}) || self.rewards.size() > 0", NO_MEAN_REWARD
    else:
        return
    field = ".data.prompts.curriculum"
    yield CelRule(implies(algorithm_is_set, condition), problem, field_path=field)


def _streaming_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    # Rows of another kind than the algorithm's are refused by another rule.
    kind = getattr(model, "data", None)
    kinds = [kind] if isinstance(kind, str) else list(Data.model_fields)
    streams = _streams(kinds)
    refusal = streaming_refusal(name, model)
    if refusal is not None:
        yield CelRule(implies(algorithm_is_set, f"!({streams})"), refusal, field_path=".data")
        return
    for field, problem in (("maxEpochs", STREAMS_WITHOUT_END), ("hint", STREAMS_NO_HINTS)):
        if field in [field_alias(model, each) for each in model.model_fields]:
            yield CelRule(
                implies(algorithm_is_set, f"!has(self.algorithm.{name}.{field}) || !({streams})"),
                problem,
                field_path=f".algorithm.{name}.{field}",
            )


def _streams(kinds: Iterable[str]) -> str:
    """Return the condition that rows of one of these kinds are streamed."""
    return " || ".join(f"(has(self.data.{rows}) && has(self.data.{rows}.streaming))" for rows in kinds)


def _streamed_tokenizer_rule() -> CelRule:
    config = "self.policy.model.config"
    return CelRule(
        f"!has({config}) || !has({config}.tokenizer.train) || !({_streams(Data.model_fields)})",
        STREAMS_NO_TOKENIZER_TEXTS,
        field_path=".policy.model.config.tokenizer.train",
    )


def _ratings_rule(name: str, algorithm_is_set: str) -> CelRule:
    form = "self.data.preferences.format"
    named = " || ".join(
        f"(has({form}.{layout}) && has({form}.{layout}.chosenRating) && has({form}.{layout}.rejectedRating))"
        for layout in ("text", "chat", "tokens")
    )
    return CelRule(
        implies(f"{algorithm_is_set} && has(self.data.preferences)", f"has({form}) && ({named})"),
        f"{name} learns from ratings: name the column that holds them",
        field_path=".data.preferences.format",
    )


def _last_turn_rule(name: str, algorithm_is_set: str) -> CelRule:
    form = "self.data.demonstrations.format"
    guard = f"{algorithm_is_set} && has(self.data.demonstrations) && has({form}) && has({form}.chat)"
    return CelRule(
        implies(guard, f"{form}.chat.turns == 'Last'"),
        f"{name} has one response to a row: set Last",
        field_path=".data.demonstrations.format.chat.turns",
    )


def _text_rows_rule(name: str, algorithm_is_set: str, kind: str) -> CelRule:
    rows = f"self.data.{kind}"
    return CelRule(
        implies(f"{algorithm_is_set} && has({rows}) && has({rows}.format)", f"!has({rows}.format.tokens)"),
        f"{name} needs the text of its rows: set format.text or format.chat",
        field_path=f".data.{kind}.format.tokens",
    )


def _selection_rule(name: str, algorithm_is_set: str) -> CelRule:
    return CelRule(
        implies(algorithm_is_set, f"self.algorithm.{name}.keep == 'All' || self.rewards.size() > 0"),
        f"{name} needs rewards to choose by: name at least one",
        field_path=".rewards",
    )


def _critic_rules(name: str, algorithm_is_set: str, *, has_critic: bool) -> Iterator[CelRule]:
    if has_critic:
        has_model = "has(self.critic) && has(self.critic.model)"
        yield CelRule(
            implies(
                algorithm_is_set,
                f"({has_model}) || self.rewards.size() == 0 || self.rewards.exists(r, has(r.model))",
            ),
            "no reward is a model to start the critic from: set critic.model",
            field_path=".critic",
        )
        return
    yield CelRule(
        implies(algorithm_is_set, "!has(self.critic)"),
        f"{name} has no critic: remove it",
        field_path=".critic",
    )
    yield CelRule(
        implies(algorithm_is_set, "self.rewards.all(r, r.placement != 'WithCritic')"),
        f"{name} has no critic: set placement to Own",
        field_path=".rewards",
    )


def _reference_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    if model.reference_model is Requirement.NEEDED:
        alternatives = "".join(
            f"has(self.algorithm.{name}.{field}) || "
            for field in ("hint", "distribution")
            if field in model.model_fields
        )
        if model.several_teachers:
            alternatives += f"{_HAS_TEACHERS} || "
        yield CelRule(
            implies(algorithm_is_set, f"{alternatives}(has(self.reference) && has(self.reference.model))"),
            f"{name} learns from the reference as its teacher: name a model",
            field_path=".reference",
        )
    if "distribution" in model.model_fields:
        yield CelRule(
            implies(f"{algorithm_is_set} && has(self.algorithm.{name}.distribution)", "!has(self.reference)"),
            f"{name} uses no reference in this job: remove it: {TEACHER_IS_NO_REFERENCE}",
            field_path=".reference",
        )
    remedy, condition = "remove it", ""
    if issubclass(model, OnPolicySpec):
        kl = f"self.algorithm.{name}.kl"
        condition = f"!has({kl}.fixed) || {kl}.fixed.coefficient > 0.0"
        remedy += f", or set algorithm.{name}.kl.fixed.coefficient above 0"
    elif model is CustomOfflineSpec:
        condition = f"self.algorithm.{name}.reference"
    elif model.model_construct().uses_reference:
        return
    guard = f"{algorithm_is_set} && has(self.reference)" if condition else algorithm_is_set
    yield CelRule(
        implies(guard, condition or "!has(self.reference)"),
        f"{name} uses no reference in this job: {remedy}",
        field_path=".reference",
    )


def _hint_rules(hint_is_set: str, name: str) -> Iterator[CelRule]:
    rows = "self.data.prompts"
    yield CelRule(
        implies(
            f"{hint_is_set} && has({rows}) && has({rows}.format)",
            f"!has({rows}.format.tokens)",
        ),
        HINT_NEEDS_TEXT,
        field_path=".data.prompts.format.tokens",
    )
    yield CelRule(
        implies(
            f"{hint_is_set} && has({rows}) && (!has({rows}.format) || has({rows}.format.text))",
            f"self.algorithm.{name}.hint.message == 'User'",
        ),
        HINT_NEEDS_CHAT,
        field_path=f".algorithm.{name}.hint.message",
    )


def _adapter_rules() -> Iterator[CelRule]:
    yield CelRule(
        "!has(self.reference) || self.reference.placement != 'AdapterOff' || has(self.trainer.lora)",
        "needs an adapter to switch off: set trainer.lora, or Own",
        field_path=".reference.placement",
    )
    is_native = "has(self.rollout.engine.vllm) && self.rollout.engine.vllm.adapters == 'Native'"
    lora = "self.trainer.lora"
    for condition, message in (
        (f"has({lora})", NO_NATIVE_ADAPTER),
        (f"!has({lora}) || !{lora}.dora", NO_NATIVE_DORA),
        (f"!has({lora}) || {lora}.rank <= {MAX_NATIVE_ADAPTER_RANK}", NATIVE_RANK_TOO_LARGE),
    ):
        yield CelRule(implies(is_native, condition), message, field_path=".rollout.engine.vllm.adapters")


def _teacher_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    """Yield the rules that the job has a teacher if the algorithm, or its distribution, needs one."""
    has_distribution = f"has(self.algorithm.{name}.distribution)"
    is_optional = "distribution" in model.model_fields
    if model.teacher or is_optional:
        guard = f"{algorithm_is_set} && {has_distribution}" if is_optional else algorithm_is_set
        message = f"{name} imitates a teacher: set teacher.model"
        condition = "has(self.teacher)" + (f" || {_HAS_TEACHERS}" if model.several_teachers else "")
        yield CelRule(implies(guard, condition), message, field_path=".teacher")
    if not model.several_teachers:
        message = unusable_teachers_message(name, model)
        yield CelRule(implies(algorithm_is_set, f"!({_HAS_TEACHERS})"), message, field_path=".teachers")
    if not model.teacher:
        guard = f"{algorithm_is_set} && !{has_distribution}" if is_optional else algorithm_is_set
        message = unused_teacher_message(name, model)
        yield CelRule(implies(guard, "!has(self.teacher)"), message, field_path=".teacher")


#: Condition that the job has several teachers.
_HAS_TEACHERS = "self.teachers.size() > 0"


def _several_teachers_rules() -> Iterator[CelRule]:
    """Yield the rules of `teachers` and of the sources of prompts that name one of them."""
    prompts, has_mixture = "self.data.prompts", _HAS_PROMPT_MIXTURE
    yield CelRule(implies(_HAS_TEACHERS, "!has(self.teacher)"), TEACHER_AND_TEACHERS, field_path=".teacher")
    yield CelRule(
        implies(_HAS_TEACHERS, "!has(self.reference)"), TEACHERS_ARE_NO_REFERENCE, field_path=".reference"
    )
    yield CelRule(
        implies(_HAS_TEACHERS, f"!has({prompts}) || has({prompts}.mixture)"),
        TEACHERS_NEED_MIXTURE,
        field_path=".data.prompts.mixture",
    )
    yield CelRule(
        implies(
            f"{_HAS_TEACHERS} && {has_mixture}",
            f"{prompts}.mixture.all(entry, has(entry.teacher) && "
            "self.teachers.exists(teacher, teacher.name == entry.teacher))",
        ),
        "each entry must name one of the teachers in its field teacher",
        field_path=".data.prompts.mixture",
    )
    yield CelRule(
        implies(f"!({_HAS_TEACHERS}) && {has_mixture}", f"{prompts}.mixture.all(entry, !has(entry.teacher))"),
        f"teacher of an entry: {NO_TEACHERS_TO_NAME}",
        field_path=".data.prompts.mixture",
    )
    yield CelRule(
        implies(
            has_mixture,
            f"self.teachers.all(teacher, {prompts}.mixture.exists(entry, "
            "has(entry.teacher) && entry.teacher == teacher.name))",
        ),
        UNUSED_TEACHER,
        field_path=".teachers",
    )


def _overlap_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    if not model.online:
        yield CelRule(
            implies(algorithm_is_set, "!has(self.overlap)"),
            f"{name} {NO_STEPS_TO_OVERLAP}",
            field_path=".overlap",
        )
    elif not model.critic:
        yield CelRule(
            implies(algorithm_is_set, "!has(self.overlap) || self.overlap.parallelTraining"),
            f"{name} {NO_CRITIC_TO_TRAIN}",
            field_path=".overlap.parallelTraining",
        )


def _rollout_rules(name: str, algorithm_is_set: str, model: type[AlgorithmSpec]) -> Iterator[CelRule]:
    if model.samples and not model.makes.is_model:
        return
    if model.samples:
        yield CelRule(
            implies(algorithm_is_set, "self.rollout.sampling.temperature > 0.0"),
            f"must be above 0: {name} learns from what it samples",
            field_path=".rollout.sampling.temperature",
        )
        return
    sampled = (
        "(has(self.validation) && "
        "(has(self.validation.sampling) || self.validation.sets.exists(s, has(s.sampling) || has(s.preset))))"
    )
    plain = " && ".join(
        _equality_conditions("self.rollout", Rollout().model_dump(mode="json", by_alias=True))
    )
    yield CelRule(
        implies(algorithm_is_set, f"{sampled} || ({plain})"),
        f"{name} does not sample: remove it, or set validation.sampling",
        field_path=".rollout",
    )


def _equality_conditions(path: str, default: Mapping[str, Any]) -> Iterator[str]:
    """Yield conditions under which the object at this path has these values; null values must be unset."""
    for name, value in default.items():
        here = f"{path}.{name}"
        match value:
            case None:
                yield f"!has({here})"
            case {}:
                yield from _equality_conditions(here, value)
            case []:
                yield f"{here}.size() == 0"
            case bool():
                yield f"{here} == {str(value).lower()}"
            case str():
                yield f"{here} == {cel_string(value)}"
            case _:
                yield f"{here} == {value!r}"


def _name_rules() -> Iterator[CelRule]:
    yield CelRule(
        "!has(self.validation) || !has(self.validation.sampling) || "
        "self.validation.sampling.scores.all(s, !self.rewards.exists(r, r.name == s.name))",
        "a reward or another validation score has the name of one: rename one",
        field_path=".validation.sampling.scores",
    )
