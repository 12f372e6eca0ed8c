"""Rules of a validation that span several fields of a spec.

As in `cross_field_validation`, the parameters of each check are named after the fields that it reads.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from kubealign.spec.algorithms import Algorithm, ResultKind
from kubealign.spec.base import field_alias
from kubealign.spec.held_out_rows import HeldOutRows, list_held_out_rows, rows_of_metric
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.data import READS_ALL_ROWS, Data
from kubealign.spec.sections.engines import InferenceServer
from kubealign.spec.sections.lifecycle import Checkpoint
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.rollout import Rollout
from kubealign.spec.sections.validation import Validation, ValidationSet

#: (path below the spec, invalid value, message).
FieldProblem: TypeAlias = tuple[DocumentPath, Any, str]

#: Reasons to refuse fields of held-out rows.
VALIDATES_ALL_PROMPTS = "validation samples every prompt: remove it"
VALIDATES_ALL_ROWS = "validation measures every row: remove it"
SGLANG_VALIDATES_UNTRUNCATED = (
    "SGLang reports log-probabilities before topK and topP are applied: remove it, or set "
    "rollout.engine.openai.server to Vllm"
)
NO_RESPONSES_OF_REWARD_MODEL = "a reward model gives scores, not responses: remove it"
BELOW_MIN_TOKENS = "must be at least rollout.sampling.minTokens"

#: Name of a set that the metrics of rewards have: val/reward/NAME.
REWARD_METRICS = "reward"
SET_NAMED_REWARD = "val/reward/NAME is the metric of a reward: choose another name"
SET_NAMED_AS_SCORE = "a score of validation.sampling has this name: rename one"

#: Longest name of the process of a set's score, SET-NAME, as of every reward.
MAX_SCORE_PROCESS_NAME = 50
LONG_SCORE_NAME = (
    f"the name of the set, a hyphen and this name may have {MAX_SCORE_PROCESS_NAME} characters, since they "
    "name a process: shorten either"
)
REWARDS_SCORE_RESPONSES = "there are no responses that a reward could score: set sampling, or remove it"

EARLY_STOPPING_NEEDS_STEPS = "early stopping needs a measurement every so many steps: set it"
KEEP_BEST_NEEDS_STEPS = "checkpoint.keepBest needs a measurement every so many steps: set it"

#: Reasons to refuse the settings of training beside an evaluation.
NOTHING_TO_MEASURE = "evaluate measures the validation: set validation.data or validation.sets"
NO_TRAINING_DATA = "evaluate reads the rows of validation alone: remove it"
NO_STEPS_TO_STOP = "evaluate trains no steps: remove it"
MEASURES_EVERY_MODEL = "evaluate measures every model: remove it"
NO_CHECKPOINTS_TO_KEEP = "evaluate trains nothing and has no checkpoints: remove it"


def check_data_fields(validation: Validation | None) -> Iterator[FieldProblem]:
    """Yield the fields of held-out data that have a meaning for training data only."""
    for rows in list_held_out_rows(validation):
        data, path = rows.data.value, rows.rows_path
        if data.mixture is not None:
            yield (*path, "mixture"), data.mixture, f"validation reads {READS_ALL_ROWS}, and name groupBy"
        if data.streaming is not None:
            yield (*path, "streaming"), data.streaming, VALIDATES_ALL_ROWS
        curriculum = getattr(data, "curriculum", None)
        if curriculum is not None:
            yield (*path, "curriculum"), curriculum, VALIDATES_ALL_PROMPTS


def check_kind(algorithm: Algorithm, validation: Validation | None) -> Iterator[FieldProblem]:
    """Yield the rows, and the sampling, that do not fit the algorithm."""
    if validation is None:
        if algorithm.evaluate is not None:
            yield ("validation",), None, NOTHING_TO_MEASURE
        return
    if algorithm.value.makes is ResultKind.DATA:
        name = field_alias(Algorithm, algorithm.member)
        yield ("validation",), validation, f"{name} produces no weights to validate: remove it"
        return
    for rows in list_held_out_rows(validation):
        yield from _kind_problems(algorithm, rows)


def _kind_problems(algorithm: Algorithm, rows: HeldOutRows) -> Iterator[FieldProblem]:
    name, kind = field_alias(Algorithm, algorithm.member), algorithm.value.data
    member, samples = rows.data.member, algorithm.value.samples
    path = rows.rows_path
    if algorithm.value.makes is ResultKind.REWARD_MODEL and rows.is_preset:
        yield path, rows.data.value, NO_RESPONSES_OF_REWARD_MODEL
    elif algorithm.value.makes is ResultKind.REWARD_MODEL:
        if rows.sampling is not None:
            yield rows.sampling_path, rows.sampling, NO_RESPONSES_OF_REWARD_MODEL
        if member != kind:
            yield path, rows.data.value, f"{name} validates on {kind}: set data.{kind}"
    elif samples and member != "prompts":
        yield path, rows.data.value, f"{name} validates on prompts"
    elif member not in (kind, "prompts"):
        yield path, rows.data.value, f"{name} validates on {kind} or prompts"
    elif member == "prompts" and not samples and rows.sampling is None:
        yield rows.sampling_path, None, f"prompts alone have no loss: set it, or validate on {kind}"


def check_set_names(validation: Validation | None) -> Iterator[FieldProblem]:
    """Yield the names of sets whose metrics would have the names of others."""
    if validation is None:
        return
    scores = [] if validation.sampling is None else validation.sampling.scores
    taken = {score.name for score in scores}
    for index, entry in enumerate(validation.sets):
        path: DocumentPath = ("validation", "sets", index, "name")
        if entry.name == REWARD_METRICS:
            yield path, entry.name, SET_NAMED_REWARD
        elif entry.name in taken:
            yield path, entry.name, SET_NAMED_AS_SCORE


def check_set_scores(
    algorithm: Algorithm, rewards: list[Reward], validation: Validation | None
) -> Iterator[FieldProblem]:
    """Yield rewards that sets name and the job does not have, and names of scores that are too long."""
    names = [reward.name for reward in rewards]
    for rows in list_held_out_rows(validation):
        for index, name in enumerate(rows.rewards or ()):
            path = (*rows.path, "rewards", index)
            if rows.sampling is None and not algorithm.value.samples:
                yield path, name, REWARDS_SCORE_RESPONSES
            elif name not in names:
                allowed = f"write one of {', '.join(names)}" if names else "the job has no rewards: remove it"
                yield path, name, f"names no reward of the job: {allowed}"
        for score_path, score in rows.score_fields():
            if len(score.name) > MAX_SCORE_PROCESS_NAME:
                yield (*score_path, "name"), score.name, LONG_SCORE_NAME


def check_sampling(rollout: Rollout, validation: Validation | None) -> Iterator[FieldProblem]:
    """Yield sampling parameters that contradict those of the rollout, or that its engine does not have."""
    server = rollout.engine.openai
    truncates = server is None or server.server is not InferenceServer.SGLANG
    least = rollout.sampling.min_tokens
    for rows in list_held_out_rows(validation):
        sampling = rows.sampling
        if sampling is None:
            continue
        if sampling.max_tokens is not None and sampling.max_tokens < least:
            yield (*rows.sampling_path, "maxTokens"), sampling.max_tokens, f"{BELOW_MIN_TOKENS} ({least})"
        for field, value, neutral in (("topK", sampling.top_k, 0), ("topP", sampling.top_p, 1.0)):
            if not truncates and value not in (None, neutral):
                yield (*rows.sampling_path, field), value, SGLANG_VALIDATES_UNTRUNCATED


def check_evaluation(
    algorithm: Algorithm, data: Data, validation: Validation | None, checkpoint: Checkpoint
) -> Iterator[FieldProblem]:
    """Yield the settings of training beside an evaluation, which measures all rows on every model."""
    if algorithm.evaluate is None or validation is None:
        return
    if data != list_held_out_rows(validation)[0].data:
        yield ("data",), data, NO_TRAINING_DATA
    if validation.early_stopping is not None:
        yield ("validation", "earlyStopping"), validation.early_stopping, NO_STEPS_TO_STOP
    sections: list[tuple[DocumentPath, Validation | ValidationSet]] = [(("validation",), validation)]
    sections += [(("validation", "sets", index), entry) for index, entry in enumerate(validation.sets)]
    for path, section in sections:
        if section.every_steps is not None:
            yield (*path, "everySteps"), section.every_steps, NO_STEPS_TO_STOP
        for field, value in (("atStart", section.at_start), ("atEnd", section.at_end)):
            if value is False:
                yield (*path, field), value, MEASURES_EVERY_MODEL
    if checkpoint.keep_best is not None:
        yield ("checkpoint", "keepBest"), checkpoint.keep_best, NO_CHECKPOINTS_TO_KEEP


def check_early_stopping(algorithm: Algorithm, validation: Validation | None) -> Iterator[FieldProblem]:
    """Yield a metric of early stopping that no validation has, or that is measured too rarely."""
    stop = None if validation is None else validation.early_stopping
    if stop is None or algorithm.evaluate is not None:
        return
    path: DocumentPath = ("validation", "earlyStopping", "metric")
    if not stop.metric.startswith("val/"):
        guess = "val/" + stop.metric.split("/")[-1]
        remedy = f"must name a validation metric, such as {guess}: they begin with val/"
        yield path, stop.metric, remedy
        return
    yield from _metric_problems(validation, path, stop.metric, EARLY_STOPPING_NEEDS_STEPS)


def check_keep_best(
    algorithm: Algorithm, checkpoint: Checkpoint, validation: Validation | None
) -> Iterator[FieldProblem]:
    """Yield a metric of checkpoint.keepBest that no validation has, or that is measured too rarely."""
    if checkpoint.keep_best is None or algorithm.evaluate is not None:
        return
    if validation is None:
        yield ("validation", "everySteps"), None, KEEP_BEST_NEEDS_STEPS
        return
    path: DocumentPath = ("checkpoint", "keepBest", "metric")
    yield from _metric_problems(validation, path, checkpoint.keep_best.metric, KEEP_BEST_NEEDS_STEPS)


def _metric_problems(
    validation: Validation | None, path: DocumentPath, metric: str, too_rare: str
) -> Iterator[FieldProblem]:
    all_rows = list_held_out_rows(validation)
    rows = rows_of_metric(metric, all_rows)
    if rows is None:
        allowed = ", ".join(f"{entry.metric_prefix}NAME" for entry in all_rows)
        yield path, metric, f"is a metric of no set: write one of {allowed}"
    elif rows.every_steps is None:
        # Without validation.everySteps that of the set is enough.
        yield (*rows.path, "everySteps"), None, too_rare


VALIDATION_CHECKS: tuple[Callable[..., Iterator[FieldProblem]], ...] = (
    check_data_fields,
    check_kind,
    check_set_names,
    check_set_scores,
    check_sampling,
    check_evaluation,
    check_early_stopping,
    check_keep_best,
)
