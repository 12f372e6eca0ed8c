"""Rules that span several fields of a spec.

The parameters of each check are named after the fields of the spec that the check reads, so that checks
whose fields
are valid can run while other fields are invalid.
"""

from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from kubealign.spec.algorithms import (
    Algorithm,
    AlgorithmSpec,
    IterativeSpec,
    Requirement,
    ResultKind,
)
from kubealign.spec.algorithms.evaluation import CHECKPOINTS_PATH
from kubealign.spec.algorithms.on_policy_distillation import HintMessage
from kubealign.spec.attention_heads import heads_problem
from kubealign.spec.base import field_alias
from kubealign.spec.held_out_rows import list_held_out_rows
from kubealign.spec.model_types import architecture_problem, router_type_error
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.data import READS_ALL_ROWS, Data, ImitatedTurns
from kubealign.spec.sections.engines import (
    MAX_NATIVE_ADAPTER_RANK,
    AdapterMode,
    Engine,
)
from kubealign.spec.sections.lifecycle import Checkpoint
from kubealign.spec.sections.models import Policy
from kubealign.spec.sections.overlap import Overlap
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rewards import DEFAULT_REWARD, Reward, RewardPlacement
from kubealign.spec.sections.rollout import (
    EXTERNAL_ENGINES,
    InFlightPolicy,
    ReferencePlacement,
    Rollout,
    RolloutPlacement,
    SampleScoring,
)
from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign.spec.sections.validation import Validation, ValidationScore
from kubealign.spec.step_checks import check_step_labels, check_step_rewards
from kubealign.spec.validation_checks import VALIDATION_CHECKS, FieldProblem
from kubealign.spec.workflows.branch_checks import check_branches
from kubealign.spec.workflows.tool_call_checks import check_tool_calls

if TYPE_CHECKING:
    from kubealign.spec.job import Critic, NamedTeacher, Reference, Teacher

#: Names of process groups and metrics that must not be used for a reward or score.
RESERVED_NAMES = {"reference": "the reference model", "teacher": "the teacher", "loss": "the validation loss"}

#: Reasons to refuse a curriculum.
NO_SAMPLES_OF_STEPS = "does not sample the prompts of each step: remove it"
NO_MEAN_REWARD = "there are no rewards to assign prompts by: name at least one, or remove it"

#: Reasons to refuse an overlap, or a field beside it.
NO_STEPS_TO_OVERLAP = "has no steps of generation, scoring and training: remove it"
NO_CRITIC_TO_TRAIN = "has no critic to train beside the policy: remove it"
CONTRADICTS_OVERLAP = "contradicts overlap.scoreOnArrival false: write WholeBatch, or remove either"

#: Reasons to refuse streamed rows, or a field beside them.
STREAMS_WITHOUT_END = (
    "the number of steps of an epoch is not known before all rows are streamed: set maxSteps in its place, "
    "or remove streaming"
)
STREAMS_NO_TOKENIZER_TEXTS = (
    "a tokenizer is trained on all rows before the first step: set path in its place, or remove streaming"
)
STREAMS_NO_HINTS = "the teacher's processes read the hints of prepared rows: remove it, or remove streaming"

#: Reason to refuse a length of an evaluation.
NO_STEPS_TO_COUNT = "evaluate has no steps to count: remove it"

#: Errors of a hint in prompts that cannot carry it.
HINT_NEEDS_TEXT = "a hint is put into the text of a prompt: set format.text or format.chat, or remove hint"
HINT_NEEDS_CHAT = "text prompts have no system message: set User, or data.prompts.format.chat"

#: Reason to refuse a reference where the job has a teacher of its own.
TEACHER_IS_NO_REFERENCE = "with distribution the teacher is teacher.model"
TEACHERS_ARE_NO_REFERENCE = "teachers names the teachers: remove it"

#: Error of a reward of the scope Group whose responses are revised.
REVISIONS_ARE_SCORED_ALONE = "revised responses are scored one by one: write Sample, or remove revise"
#: Errors of rewards of some sources of prompts.
REWARD_SOURCES_NEED_MIXTURE = "there are no sources to choose from: set data.prompts.mixture, or remove it"
RUNS_NO_WORKFLOW = "runs no workflow, which would give the reward: choose another source"
NO_WORKFLOW_GIVES_REWARDS = (
    "no workflow gives a reward: set rollout.workflow.function, rollout.workflow.environment or "
    "rollout.workflow.agent"
)
OTHER_ENVIRONMENT_REWARD = (
    "the environment gives its reward under the name rollout.workflow.environment.reward"
)
NO_JUDGE_OF_DATA = "the algorithm trains and measures no policy that could judge: set judge"
JUDGES_HAVE_WORKERS = (
    "rollout workers that take turns with the trainer cannot be asked while the trainer has its turn: set "
    "rollout.placement to Own, or judge"
)
OTHER_AGENT_REWARD = f"an agent gives its reward under the name {DEFAULT_REWARD}: write it, or remove name"
UNSCORED_SOURCE = "no reward scores the responses to this source: name it in the sources of one"

#: Errors of several teachers.
TEACHER_AND_TEACHERS = "teachers names the teachers: remove teacher, or remove teachers"
TEACHERS_NEED_MIXTURE = "each source of prompts names its teacher: set mixture in place of source"
NO_TEACHERS_TO_NAME = "there are no teachers to choose from: set teachers, or remove it"
UNUSED_TEACHER = "no source of data.prompts.mixture has this teacher: name it in one, or remove the teacher"

#: Errors of adapters that vLLM is to apply itself.
NO_NATIVE_ADAPTER = "there is no adapter to apply: set trainer.lora, or Merged"
NO_NATIVE_DORA = "vLLM cannot apply DoRA: set Merged, or trainer.lora.dora to false"
NATIVE_RANK_TOO_LARGE = (
    f"vLLM applies adapters of at most rank {MAX_NATIVE_ADAPTER_RANK}: set Merged, or a smaller "
    "trainer.lora.rank"
)


def unused_teacher_message(name: str, algorithm: type[AlgorithmSpec]) -> str:
    """Return the error of a teacher that the algorithm, a field of the union Algorithm, does not use."""
    remedy = "remove it"
    if "distribution" in algorithm.model_fields:
        remedy += f", or set algorithm.{name}.distribution; without it the teacher is reference.model"
    return f"{name} has no teacher: {remedy}"


def unusable_teachers_message(name: str, algorithm: type[AlgorithmSpec]) -> str:
    """Return the error of several teachers where the algorithm, a field of the union Algorithm, has at most
    one.
    """
    return f"{name} has one teacher: set teacher.model" if algorithm.teacher else f"{name} has no teachers"


def streaming_refusal(name: str, algorithm: type[AlgorithmSpec]) -> str | None:
    """Return the reason why an algorithm, a field of the union Algorithm, cannot stream its rows; None: it
    can.
    """
    if algorithm.makes is ResultKind.DATA:
        return f"{name} reads every row once, counted before it begins: remove it"
    if issubclass(algorithm, IterativeSpec):
        return f"{name} draws the rows of a round from all rows: remove it"
    if algorithm.mismatched:
        return f"{name} pairs each prompt with the response of a row from all rows: remove it"
    return None


def checkpoint_source_refusal(name: str, algorithm: type[AlgorithmSpec]) -> str | None:
    """Return the reason why a job of an algorithm, a field of the union Algorithm, cannot start from another
    run's checkpoint; None: it can.
    """
    if not algorithm.makes.is_model:
        return f"{name} trains nothing and has no checkpoints: remove it"
    if issubclass(algorithm, IterativeSpec):
        return f"{name} may be within a round, whose rows are in the other run: remove it"
    return None


def cross_field_problems(fields: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield every violated rule, as far as the given fields (by snake_case name) allow a check."""
    for check in _CHECKS:
        needs = signature(check).parameters
        if all(name in fields for name in needs):
            yield from check(**{name: fields[name] for name in needs})


def _algorithm_name(algorithm: Algorithm) -> str:
    return field_alias(Algorithm, algorithm.member)


def _check_length(algorithm: Algorithm, max_steps: int | None) -> Iterator[FieldProblem]:
    if algorithm.evaluate is not None:
        if max_steps is not None:
            yield ("maxSteps",), max_steps, NO_STEPS_TO_COUNT
    elif max_steps is None and getattr(algorithm.value, "max_epochs", None) is None:
        name = _algorithm_name(algorithm)
        has_epochs = "max_epochs" in type(algorithm.value).model_fields
        yield ("maxSteps",), None, missing_length_message(name, has_epochs=has_epochs)


def missing_length_message(algorithm: str, *, has_epochs: bool) -> str:
    """Return the error of a job without maxSteps and maxEpochs.

    Args:
        algorithm: Field of the algorithm in documents.
        has_epochs: True if the algorithm has the field maxEpochs.
    """
    if has_epochs:
        return f"the job has no end: set maxSteps, algorithm.{algorithm}.maxEpochs, or both"
    return f"is required: {algorithm} has no maxEpochs that could end the job"


def _check_data(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    kind = algorithm.value.data
    if algorithm.evaluate is None and data.member != kind:
        yield (
            ("data", data.member),
            data.value,
            f"{_algorithm_name(algorithm)} learns from {kind}: set data.{kind}",
        )


def _check_rewards(algorithm: Algorithm, rewards: list[Reward]) -> Iterator[FieldProblem]:
    if algorithm.value.needs_rewards and not rewards:
        purpose = "" if algorithm.value.rewards is Requirement.NEEDED else " to choose by"
        yield ("rewards",), rewards, f"{_algorithm_name(algorithm)} needs rewards{purpose}: name at least one"
    if algorithm.value.rewards is Requirement.NONE and rewards:
        remedy = "remove them (validation.sampling.scores measures samples)"
        yield ("rewards",), rewards, f"{_algorithm_name(algorithm)} does not use rewards: {remedy}"
    for index, reward in enumerate(rewards):
        if reward.placement is RewardPlacement.WITH_CRITIC and not algorithm.value.critic:
            path = ("rewards", index, "placement")
            yield path, reward.placement, f"{_algorithm_name(algorithm)} has no critic: set Own"


def _check_episode_rewards(
    algorithm: Algorithm, rollout: Rollout, rewards: list[Reward]
) -> Iterator[FieldProblem]:
    """Yield the problems of rewards that no workflow gives."""
    workflow = rollout.workflow
    for index, reward in enumerate(rewards):
        if reward.episode is None:
            continue
        path = ("rewards", index, "episode")
        if not algorithm.value.runs_workflows:
            problem = f"{_algorithm_name(algorithm)} {RUNS_NO_WORKFLOW}"
            yield path, reward.episode, problem
        elif workflow is None or not workflow.gives_rewards:
            yield path, reward.episode, NO_WORKFLOW_GIVES_REWARDS
        elif workflow.environment is not None and reward.episode.name != workflow.environment.reward:
            problem = f"{OTHER_ENVIRONMENT_REWARD} ({workflow.environment.reward}): name it so"
            yield (*path, "name"), reward.episode.name, problem
        elif workflow.agent is not None and reward.episode.name != DEFAULT_REWARD:
            yield (*path, "name"), reward.episode.name, OTHER_AGENT_REWARD


def _check_policy_judges(
    algorithm: Algorithm, rollout: Rollout, rewards: list[Reward], validation: Validation | None
) -> Iterator[FieldProblem]:
    """Yield the judgements of a policy that has no rollout workers for them."""
    entries: list[tuple[DocumentPath, Reward | ValidationScore]] = [
        (("rewards", index), reward) for index, reward in enumerate(rewards)
    ]
    entries += [entry for rows in list_held_out_rows(validation) for entry in rows.score_fields()]
    for path, entry in entries:
        if entry.policy_judge is None:
            continue
        if algorithm.value.makes is ResultKind.DATA:
            yield (*path, "policyJudge"), entry.policy_judge, NO_JUDGE_OF_DATA
        elif rollout.placement is not RolloutPlacement.OWN:
            yield (*path, "policyJudge"), entry.policy_judge, JUDGES_HAVE_WORKERS


def _check_group_scope(algorithm: Algorithm, rewards: list[Reward]) -> Iterator[FieldProblem]:
    """Yield the problems of rewards that score groups, where the responses are scored one by one."""
    name = _algorithm_name(algorithm)
    if algorithm.value.rewards is Requirement.NONE:
        return
    if not algorithm.value.samples:
        remedy = scores_given_rows_message(name)
    elif getattr(algorithm.value, "revise", None) is not None:
        remedy = REVISIONS_ARE_SCORED_ALONE
    else:
        return
    for index, reward in enumerate(rewards):
        if reward.scores_groups:
            yield ("rewards", index, "scope"), reward.scope, remedy


def scores_given_rows_message(name: str) -> str:
    """Return the error of a reward of the scope Group with an algorithm that samples nothing.

    Args:
        name: Field of the algorithm in documents.
    """
    return f"{name} scores given responses, one for each prompt: write Sample"


def _check_reward_sources(algorithm: Algorithm, data: Data, rewards: list[Reward]) -> Iterator[FieldProblem]:
    mixture = None if data.prompts is None else data.prompts.mixture
    if mixture is None:
        for index, reward in enumerate(rewards):
            # An evaluation has no training prompts; the held-out rows name their sources.
            if reward.sources is not None and algorithm.evaluate is None:
                yield ("rewards", index, "sources"), reward.sources, REWARD_SOURCES_NEED_MIXTURE
        return
    names = [entry.name for entry in mixture]
    for index, reward in enumerate(rewards):
        for position, source in enumerate(reward.sources or ()):
            if source not in names:
                path = ("rewards", index, "sources", position)
                allowed = f"write one of {', '.join(names)}"
                yield path, source, f"names no source of data.prompts.mixture: {allowed}"
    if rewards and algorithm.value.needs_rewards:
        for index, name in enumerate(names):
            if not any(reward.scores_source(name) for reward in rewards):
                yield ("data", "prompts", "mixture", index, "name"), name, UNSCORED_SOURCE


def _check_dynamic_sampling(algorithm: Algorithm, rewards: list[Reward]) -> Iterator[FieldProblem]:
    entry = getattr(algorithm.value, "dynamic_sampling", None)
    if entry is not None:
        yield from _check_by(
            ("algorithm", _algorithm_name(algorithm), "dynamicSampling", "by"), entry.by, rewards
        )


def _check_by(path: DocumentPath, by: str | None, rewards: list[Reward]) -> Iterator[FieldProblem]:
    """Yield the problem of a field that names none of the rewards."""
    names = [reward.name for reward in rewards]
    if by is not None and by not in names:
        yield path, by, f"there is no such reward: name one of {', '.join(names) or 'the rewards'}"


def _check_names(rewards: list[Reward], validation: Validation | None) -> Iterator[FieldProblem]:
    entries: list[tuple[DocumentPath, str]] = [
        (("rewards", i, "name"), reward.name) for i, reward in enumerate(rewards)
    ]
    for rows in list_held_out_rows(validation):
        entries += [((*path, "name"), score.name) for path, score in rows.score_fields()]
    taken: set[str] = set()
    for path, name in entries:
        if name in taken:
            yield path, name, "another reward or validation score has this name: rename one"
        if name in RESERVED_NAMES:
            yield path, name, f"this name stands for {RESERVED_NAMES[name]}: choose another"
        taken.add(name)


def _check_critic(
    algorithm: Algorithm, critic: "Critic | None", rewards: list[Reward]
) -> Iterator[FieldProblem]:
    if not algorithm.value.critic:
        if critic is not None:
            yield ("critic",), critic, f"{_algorithm_name(algorithm)} has no critic: remove it"
        return
    model = None if critic is None else critic.model
    if model is None and rewards and not any(reward.model for reward in rewards):
        yield ("critic", "model"), None, "no reward is a model to start the critic from: set critic.model"
    if (
        critic is not None
        and critic.head_init is HeadInit.REWARD_MODEL
        and model is not None
        and model.config
    ):
        remedy = "a model with random weights has no reward head: set Zero"
        yield ("critic", "headInit"), critic.head_init, remedy


def _check_reference(
    algorithm: Algorithm, reference: "Reference | None", trainer: Trainer, teachers: "list[NamedTeacher]"
) -> Iterator[FieldProblem]:
    if teachers and algorithm.value.several_teachers:
        if reference is not None:
            yield ("reference",), reference, TEACHERS_ARE_NO_REFERENCE
        return
    if algorithm.value.needs_reference_model and (reference is None or reference.model is None):
        text = f"{_algorithm_name(algorithm)} learns from the reference as its teacher: name a model"
        yield ("reference", "model"), None, text
    if reference is None:
        return
    if not algorithm.value.uses_reference:
        remedy = "remove it"
        if algorithm.value.teacher_distribution is not None:
            remedy += f": {TEACHER_IS_NO_REFERENCE}"
        elif algorithm.value.online:
            remedy += f", or set algorithm.{_algorithm_name(algorithm)}.kl.fixed.coefficient above 0"
        yield (
            ("reference",),
            reference,
            f"{_algorithm_name(algorithm)} uses no reference in this job: {remedy}",
        )
    elif reference.placement is ReferencePlacement.ADAPTER_OFF and trainer.lora is None:
        path = ("reference", "placement")
        yield path, reference.placement, "needs an adapter to switch off: set trainer.lora, or Own"


def _check_native_adapters(trainer: Trainer, rollout: Rollout) -> Iterator[FieldProblem]:
    vllm = rollout.engine.vllm
    if vllm is None or vllm.adapters is not AdapterMode.NATIVE:
        return
    path = ("rollout", "engine", "vllm", "adapters")
    if trainer.lora is None:
        yield path, vllm.adapters, NO_NATIVE_ADAPTER
        return
    if trainer.lora.dora:
        yield path, vllm.adapters, NO_NATIVE_DORA
    if trainer.lora.rank > MAX_NATIVE_ADAPTER_RANK:
        yield path, vllm.adapters, NATIVE_RANK_TOO_LARGE


def _check_hint(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    hint = getattr(algorithm.value, "hint", None)
    if hint is None or data.prompts is None:
        return
    row_format = data.prompts.format
    if row_format.tokens is not None:
        yield ("data", "prompts", "format", "tokens"), row_format.tokens, HINT_NEEDS_TEXT
    elif row_format.text is not None and hint.message is HintMessage.SYSTEM:
        path = ("algorithm", _algorithm_name(algorithm), "hint", "message")
        yield path, hint.message, HINT_NEEDS_CHAT


def _check_teacher(
    algorithm: Algorithm, teacher: "Teacher | None", teachers: "list[NamedTeacher]"
) -> Iterator[FieldProblem]:
    if teachers and algorithm.value.several_teachers:
        if teacher is not None:
            yield ("teacher",), teacher, TEACHER_AND_TEACHERS
        return
    has_teacher = algorithm.value.teacher_distribution is not None
    if has_teacher and teacher is None:
        yield ("teacher",), None, f"{_algorithm_name(algorithm)} imitates a teacher: set teacher.model"
    if not has_teacher and teacher is not None:
        yield ("teacher",), teacher, unused_teacher_message(_algorithm_name(algorithm), type(algorithm.value))


def _check_teachers(
    algorithm: Algorithm, data: Data, teachers: "list[NamedTeacher]"
) -> Iterator[FieldProblem]:
    if teachers and not algorithm.value.several_teachers:
        message = unusable_teachers_message(_algorithm_name(algorithm), type(algorithm.value))
        yield ("teachers",), teachers, message
        return
    if data.prompts is None:
        return
    names = [teacher.name for teacher in teachers]
    if teachers and data.prompts.mixture is None:
        yield ("data", "prompts", "mixture"), None, TEACHERS_NEED_MIXTURE
        return
    entries = data.prompts.mixture or []
    for index, entry in enumerate(entries):
        path = ("data", "prompts", "mixture", index, "teacher")
        if teachers and entry.teacher not in names:
            yield path, entry.teacher, f"names none of the teachers: write one of {', '.join(names)}"
        elif entry.teacher is not None and not teachers:
            yield path, entry.teacher, NO_TEACHERS_TO_NAME
    for index, name in enumerate(names):
        if all(entry.teacher != name for entry in entries):
            yield ("teachers", index, "name"), name, UNUSED_TEACHER


def _check_turns(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    chat = None if data.demonstrations is None else data.demonstrations.format.chat
    if chat is not None and chat.turns is not ImitatedTurns.LAST and not algorithm.value.turns:
        path = ("data", "demonstrations", "format", "chat", "turns")
        yield path, chat.turns, f"{_algorithm_name(algorithm)} has one response to a row: set Last"


def _check_mixture(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    if algorithm.value.makes is ResultKind.DATA and data.value.mixture is not None:
        path = ("data", data.member, "mixture")
        yield path, data.value.mixture, f"{_algorithm_name(algorithm)} reads {READS_ALL_ROWS}"


def _check_streaming(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    streaming = data.value.streaming
    if streaming is None:
        return
    name = _algorithm_name(algorithm)
    refusal = streaming_refusal(name, type(algorithm.value))
    if refusal is not None:
        yield ("data", data.member, "streaming"), streaming, refusal
        return
    epochs = getattr(algorithm.value, "max_epochs", None)
    if epochs is not None:
        yield ("algorithm", name, "maxEpochs"), epochs, STREAMS_WITHOUT_END
    hint = getattr(algorithm.value, "hint", None)
    if hint is not None:
        yield ("algorithm", name, "hint"), hint, STREAMS_NO_HINTS


def _check_streamed_tokenizer(data: Data, policy: Policy) -> Iterator[FieldProblem]:
    config = policy.model.config
    if data.value.streaming is not None and config is not None and config.tokenizer.train is not None:
        path = ("policy", "model", "config", "tokenizer", "train")
        yield path, config.tokenizer.train, STREAMS_NO_TOKENIZER_TEXTS


def _check_curriculum(algorithm: Algorithm, data: Data, rewards: list[Reward]) -> Iterator[FieldProblem]:
    entry = None if data.prompts is None else data.prompts.curriculum
    if entry is None or algorithm.evaluate is not None:
        return
    path = ("data", "prompts", "curriculum")
    if not algorithm.value.online:
        yield path, entry, f"{_algorithm_name(algorithm)} {NO_SAMPLES_OF_STEPS}"
    elif not rewards:
        yield path, entry, NO_MEAN_REWARD
    else:
        yield from _check_by((*path, "by"), entry.by, rewards)


def _check_token_ids(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    row_format = data.value.format
    if row_format.member == "tokens" and not algorithm.value.reads_token_ids:
        path = ("data", data.member, "format", "tokens")
        problem = f"{_algorithm_name(algorithm)} needs the text of its rows: set format.text or format.chat"
        yield path, row_format.tokens, problem


def _check_ratings(algorithm: Algorithm, data: Data) -> Iterator[FieldProblem]:
    if not algorithm.value.rated or data.preferences is None:
        return
    layout = data.preferences.format
    for name in ("chosen_rating", "rejected_rating"):
        if getattr(layout.value, name) is None:
            field = field_alias(type(layout.value), name)
            path = ("data", "preferences", "format", layout.member, field)
            yield (
                path,
                None,
                f"{_algorithm_name(algorithm)} learns from ratings: name the column that holds them",
            )


def _check_trainer(algorithm: Algorithm, trainer: Trainer) -> Iterator[FieldProblem]:
    # The API server fills in defaults, so defaults must be accepted.
    if not algorithm.value.trains and trainer != Trainer():
        yield ("trainer",), trainer, f"{_algorithm_name(algorithm)} produces no weights: remove it"


def _check_rollout(
    algorithm: Algorithm, rollout: Rollout, validation: Validation | None
) -> Iterator[FieldProblem]:
    sampled = validation is not None and validation.sampling is not None
    # The API server fills in defaults, so defaults must be accepted.
    # Earlier versions stored the engine's precision, whose default was Float32, with every job.
    unset = (Rollout(), Rollout().with_precision(Precision.FLOAT32))
    if not algorithm.value.samples and not sampled and rollout not in unset:
        yield (
            ("rollout",),
            rollout,
            f"{_algorithm_name(algorithm)} does not sample: remove it, or set validation.sampling",
        )
    learns = algorithm.value.samples and algorithm.value.trains
    if learns and rollout.sampling.temperature == 0:
        path = ("rollout", "sampling", "temperature")
        yield path, 0, f"must be above 0: {_algorithm_name(algorithm)} learns from what it samples"


def _check_placement(algorithm: Algorithm, rollout: Rollout, trainer: Trainer) -> Iterator[FieldProblem]:
    if rollout.placement is not RolloutPlacement.WITH_TRAINER:
        return
    own = "set rollout.placement to Own"
    if not algorithm.value.trains:
        path: DocumentPath = ("rollout", "placement")
        yield (
            path,
            rollout.placement,
            f"{_algorithm_name(algorithm)} has no trainer whose processes could be shared: set Own",
        )
        return
    if rollout.replicas != trainer.ranks:
        text = f"each of the trainer's processes has one worker: write {trainer.ranks}, or {own}"
        yield ("rollout", "replicas"), rollout.replicas, text
    if rollout.engine.torch is None:
        member = field_alias(Engine, rollout.engine.member)
        text = f"only the torch engine can run in the trainer's processes: set torch, or {own}"
        yield ("rollout", "engine", member), rollout.engine.value, text
    elif rollout.engine.torch.tensor_parallel != 1:
        path = ("rollout", "engine", "torch", "tensorParallel")
        text = f"a worker WithTrainer is one process: write 1, or {own}"
        yield path, rollout.engine.torch.tensor_parallel, text
    if trainer.backend.torch is None:
        text = f"only the torch backend can offload its memory during generation: set torch, or {own}"
        yield ("trainer", "backend", trainer.backend.member), trainer.backend.value, text
    staleness = getattr(algorithm.value, "max_staleness", 0)
    if staleness:
        path = ("algorithm", _algorithm_name(algorithm), "maxStaleness")
        yield path, staleness, f"training and generation take turns: write 0, or {own}"
    if rollout.refit.in_flight not in (None, InFlightPolicy.DRAIN):
        path = ("rollout", "refit", "inFlight")
        text = f"training and generation take turns: write Drain, or {own}"
        yield path, rollout.refit.in_flight, text


def reference_sample_remedy(name: str, remedy: str) -> str:
    """Return the error of a rollout worker that cannot have the weights of the reference as well.

    Args:
        name: Field of the algorithm in documents.
    """
    return f"{name} samples from the reference as well, with a second set of weights in each worker: {remedy}"


def _check_reference_sample(algorithm: Algorithm, rollout: Rollout) -> Iterator[FieldProblem]:
    if not algorithm.value.reference_sample:
        return
    name, engine = _algorithm_name(algorithm), rollout.engine
    if rollout.placement is not RolloutPlacement.OWN:
        yield ("rollout", "placement"), rollout.placement, reference_sample_remedy(name, "set Own")
    if engine.torch is None:
        path: DocumentPath = ("rollout", "engine", field_alias(Engine, engine.member))
        yield path, engine.value, reference_sample_remedy(name, "set torch")
    elif engine.torch.tensor_parallel != 1:
        path = ("rollout", "engine", "torch", "tensorParallel")
        yield path, engine.torch.tensor_parallel, reference_sample_remedy(name, "write 1")


def _check_in_flight(rollout: Rollout) -> Iterator[FieldProblem]:
    drains = rollout.refit.in_flight in (None, InFlightPolicy.DRAIN)
    if not drains and rollout.engine.member in EXTERNAL_ENGINES:
        path = ("rollout", "refit", "inFlight")
        text = f"{field_alias(Engine, rollout.engine.member)} cannot tell which weights made which token: "
        yield path, rollout.refit.in_flight, text + "write Drain, or set rollout.engine.torch"


def _check_routing_replay(algorithm: Algorithm, rollout: Rollout, trainer: Trainer) -> Iterator[FieldProblem]:
    if not rollout.routing_replay:
        return
    path: DocumentPath = ("rollout", "routingReplay")
    if not algorithm.value.online:
        text = f"{_algorithm_name(algorithm)} does not train on the samples of each step: set false"
        yield path, True, text
    if rollout.engine.torch is None:
        member = field_alias(Engine, rollout.engine.member)
        yield path, True, f"the engine {member} records no experts: set rollout.engine.torch, or false"
    elif rollout.engine.torch.tensor_parallel != 1:
        text = (
            "a model in several processes records no experts: write 1, or set rollout.routingReplay to false"
        )
        yield ("rollout", "engine", "torch", "tensorParallel"), rollout.engine.torch.tensor_parallel, text
    if trainer.backend.torch is None:
        member = trainer.backend.member
        yield path, True, f"the backend {member} replays no experts: set trainer.backend.torch, or false"


def _check_expert_adapters(
    algorithm: Algorithm, trainer: Trainer, rollout: Rollout
) -> Iterator[FieldProblem]:
    yield from _refuse_expert_adapters("trainer", trainer)
    has_experts = trainer.lora is not None and trainer.lora.targets.has_experts
    if has_experts and algorithm.value.samples and rollout.engine.member in EXTERNAL_ENGINES:
        member = field_alias(Engine, rollout.engine.member)
        text = "loads no adapters of stacked experts: set torch, or other trainer.lora.targets"
        yield ("rollout", "engine", member), rollout.engine.value, f"{member} {text}"


def _check_critic_expert_adapters(critic: "Critic | None") -> Iterator[FieldProblem]:
    if critic is not None:
        yield from _refuse_expert_adapters("critic", critic)


def _refuse_expert_adapters(section: str, trainer: Trainer) -> Iterator[FieldProblem]:
    """Yield the problem of adapters of stacked experts with a backend that has none."""
    if trainer.lora is not None and trainer.lora.targets.has_experts and trainer.backend.torch is None:
        targets = trainer.lora.targets
        text = f"the backend {trainer.backend.member} adapts no stacked experts: set {section}.backend.torch"
        yield (section, "lora", "targets", targets.member), targets.value, text


def _check_router_loss(algorithm: Algorithm, trainer: Trainer) -> Iterator[FieldProblem]:
    coefficient = None if algorithm.sft is None else algorithm.sft.router_loss_coefficient
    if coefficient and trainer.backend.torch is None:
        path = ("algorithm", "sft", "routerLossCoefficient")
        text = f"the backend {trainer.backend.member} has no such loss: set trainer.backend.torch, or 0"
        yield path, coefficient, text


def router_fields(algorithm: Algorithm, rollout: Rollout) -> Iterator[tuple[DocumentPath, Any]]:
    """Yield (path below the spec, value) of every field that needs a policy with known routers."""
    if rollout.routing_replay:
        yield ("rollout", "routingReplay"), True
    if algorithm.sft is not None and algorithm.sft.router_loss_coefficient:
        yield ("algorithm", "sft", "routerLossCoefficient"), algorithm.sft.router_loss_coefficient


def _check_router_type(algorithm: Algorithm, policy: Policy, rollout: Rollout) -> Iterator[FieldProblem]:
    if policy.model.config is not None:
        message = router_type_error(policy.model.config.architecture.get("model_type"))
        if message is not None:
            for path, value in router_fields(algorithm, rollout):
                yield path, value, message


def _check_scoring(rollout: Rollout, checkpoint: Checkpoint) -> Iterator[FieldProblem]:
    if rollout.scoring is SampleScoring.ON_ARRIVAL and checkpoint.record_batches:
        text = (
            "recorded batches must repeat bit for bit: write WholeBatch, or remove checkpoint.recordBatches"
        )
        yield ("rollout", "scoring"), rollout.scoring, text


def _check_checkpoint_source(algorithm: Algorithm, checkpoint: Checkpoint) -> Iterator[FieldProblem]:
    refusal = checkpoint_source_refusal(_algorithm_name(algorithm), type(algorithm.value))
    if checkpoint.source is not None and refusal is not None:
        yield ("checkpoint", "from"), checkpoint.source, refusal


def _check_overlap(algorithm: Algorithm, rollout: Rollout, overlap: Overlap | None) -> Iterator[FieldProblem]:
    if overlap is None:
        return
    name = _algorithm_name(algorithm)
    if not algorithm.value.online:
        yield ("overlap",), overlap, f"{name} {NO_STEPS_TO_OVERLAP}"
        return
    if not overlap.parallel_training and not algorithm.value.critic:
        path = ("overlap", "parallelTraining")
        yield path, False, f"{name} {NO_CRITIC_TO_TRAIN}"
    if not overlap.score_on_arrival and rollout.scoring is SampleScoring.ON_ARRIVAL:
        yield ("rollout", "scoring"), rollout.scoring, CONTRADICTS_OVERLAP


def _check_overlong(algorithm: Algorithm, rollout: Rollout) -> Iterator[FieldProblem]:
    penalty = getattr(algorithm.value, "overlong", None)
    most = rollout.sampling.max_tokens
    if penalty is not None and penalty.buffer_tokens > most:
        path = ("algorithm", _algorithm_name(algorithm), "overlong", "bufferTokens")
        yield path, penalty.buffer_tokens, f"must be at most rollout.sampling.maxTokens ({most})"


def _check_attention_heads(
    policy: Policy, trainer: Trainer, critic: "Critic | None"
) -> Iterator[FieldProblem]:
    if policy.model.config is not None:
        yield from heads_problem(trainer, policy.model.config.architecture, ("trainer",))
    if critic is not None and critic.model is not None and critic.model.config is not None:
        yield from heads_problem(critic, critic.model.config.architecture, ("critic",))


def _check_policy_type(policy: Policy) -> Iterator[FieldProblem]:
    yield from architecture_problem(policy.model, ("policy", "model"))


def _check_checkpoint_types(algorithm: Algorithm) -> Iterator[FieldProblem]:
    if algorithm.evaluate is not None:
        for index, _, model in algorithm.evaluate.numbered_models():
            yield from architecture_problem(model, (*CHECKPOINTS_PATH, index, "model"))


def _check_critic_type(critic: "Critic | None") -> Iterator[FieldProblem]:
    if critic is not None and critic.model is not None:
        yield from architecture_problem(critic.model, ("critic", "model"))


def _check_reference_type(reference: "Reference | None") -> Iterator[FieldProblem]:
    if reference is not None and reference.model is not None:
        yield from architecture_problem(reference.model, ("reference", "model"))


def _check_teacher_types(teacher: "Teacher | None", teachers: "list[NamedTeacher]") -> Iterator[FieldProblem]:
    if teacher is not None:
        yield from architecture_problem(teacher.model, ("teacher", "model"))
    for index, entry in enumerate(teachers):
        yield from architecture_problem(entry.model, ("teachers", index, "model"))


_CHECKS: tuple[Callable[..., Iterator[FieldProblem]], ...] = (
    _check_length,
    _check_data,
    _check_rewards,
    _check_group_scope,
    _check_reward_sources,
    _check_episode_rewards,
    _check_policy_judges,
    check_step_rewards,
    _check_dynamic_sampling,
    _check_checkpoint_source,
    _check_names,
    _check_critic,
    _check_reference,
    _check_native_adapters,
    _check_hint,
    _check_teacher,
    _check_teachers,
    _check_turns,
    _check_mixture,
    _check_streaming,
    _check_streamed_tokenizer,
    _check_curriculum,
    _check_token_ids,
    _check_ratings,
    check_step_labels,
    _check_trainer,
    _check_rollout,
    _check_placement,
    _check_reference_sample,
    _check_in_flight,
    check_tool_calls,
    check_branches,
    _check_routing_replay,
    _check_expert_adapters,
    _check_critic_expert_adapters,
    _check_router_loss,
    _check_router_type,
    _check_scoring,
    _check_overlap,
    _check_overlong,
    _check_attention_heads,
    _check_policy_type,
    _check_checkpoint_types,
    _check_critic_type,
    _check_reference_type,
    _check_teacher_types,
    *VALIDATION_CHECKS,
)
