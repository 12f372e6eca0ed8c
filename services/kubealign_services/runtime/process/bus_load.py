"""Load of a job on its bus: the groups requested at a time, and the retention bounds that hold them. Pure."""

from dataclasses import dataclass

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.reward_servers import PolicyJudge
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore
from kubealign_services.messaging.retention_limits import Bounds, bounds_for, message_bytes

# Assumed prompt length, in tokens, of jobs that do not set data.maxTokens.
_DEFAULT_PROMPT_TOKENS = 8192
#: Engine loads of all workers in a window: one is generated, one is queued, so that no worker waits for the
#: driver.
WINDOW_LOADS = 2
# Groups that a worker pulls at a time, however few samples its engine runs.
_GROUPS_PER_PULL = 4
# Bytes of a token's text in UTF-8.
TEXT_BYTES_PER_TOKEN = 16
# Most bytes of the messages of one subject, a part of the server's storage.
_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class RequestWindow:
    """Number of groups that are requested at a time and incomplete, where all are sampled with one version of
    the weights: rounds, judgements, validation and data generation.

    Args:
        workers: Rollout workers.
        samples_per_worker: Samples that a worker generates concurrently.
        max_samples: Most samples whose messages fit the bus.
    """

    workers: int
    samples_per_worker: int
    max_samples: int

    def groups(self, samples_per_group: int) -> int:
        """Return the number of groups of this size, at least 1."""
        per_worker = max(_GROUPS_PER_PULL, -(-self.samples_per_worker // samples_per_group))
        return max(1, min(WINDOW_LOADS * self.workers * per_worker, self.max_samples // samples_per_group))


def request_window(job: AlignmentJob) -> RequestWindow | None:
    """Return the window of a job's requests; None if the job has no rollout workers."""
    rollout = job.spec.effective_rollout
    if rollout is None:
        return None
    message = message_bytes(_longest_sequence(job))
    return RequestWindow(
        workers=rollout.replicas,
        samples_per_worker=rollout.engine.value.max_sequences,
        max_samples=_MOST_BYTES // (message * _count_sources(job)),
    )


def bus_bounds(job: AlignmentJob, context_bytes: int = 0, record_bytes: int = 0) -> dict[str, Bounds]:
    """Return the retention bounds of each bus subject for a job: those of a step, or of a full window of
    requests if those are larger.

    Args:
        context_bytes: Longest prompt and columns of a row of the prepared data. They raise no bound above
            _MOST_BYTES.
        record_bytes: Bytes of a token's recorded experts, which rollouts have with rollout.routingReplay.
    """
    if job.spec.rollout.routing_replay:
        context_bytes += _longest_sequence(job) * record_bytes
    if context_bytes:
        context_bytes += initial_policy_bytes(job)
        plain, full = bus_bounds(job), _uncapped_bounds(job, context_bytes)
        return {
            subject: Bounds(
                bounds.messages, max(plain[subject].size_bytes, min(bounds.size_bytes, _MOST_BYTES))
            )
            for subject, bounds in full.items()
        }
    return _uncapped_bounds(job, 0)


def initial_policy_bytes(job: AlignmentJob) -> int:
    """Return the most bytes that a response of the initial policy adds to the columns of held-out rows."""
    samplings = [rows.sampling for rows in job.spec.held_out_rows if rows.sampling is not None]
    is_added = any(sampling.initial_policy_column is not None for sampling in samplings)
    return job.spec.max_sampled_tokens * TEXT_BYTES_PER_TOKEN if is_added else 0


def _uncapped_bounds(job: AlignmentJob, context_bytes: int) -> dict[str, Bounds]:
    step, window = _bounds_of_step(job, context_bytes), request_window(job)
    sizes = _windowed_group_sizes(job)
    if window is None or not sizes:
        return step
    samples = max(size * window.groups(size) for size in sizes)
    full_window = bounds_for(
        # Groups of one sample each are the largest number of work items.
        groups=samples * _messages_a_sample(job),
        samples_per_group=1,
        sources=_count_sources(job),
        longest_sequence=_longest_sequence(job),
        context_bytes=context_bytes,
        rollout_copies=1 + _count_group_scorers(job),
    )
    return {subject: step[subject].combine(full_window[subject]) for subject in step}


def _bounds_of_step(job: AlignmentJob, context_bytes: int) -> dict[str, Bounds]:
    """Return the bounds for the requests of one step."""
    spec = job.spec
    algorithm = spec.algorithm.value
    distribution = algorithm.teacher_distribution
    groups = getattr(algorithm, "prompts_per_step", getattr(algorithm, "rows_per_step", 1))
    samples = getattr(algorithm, "samples_per_prompt", 1) + getattr(algorithm, "reference_sample", False)
    if getattr(algorithm, "longest_prompt_template", 0):
        # The LLM judge gets a prompt for each sample and answers twice.
        groups, samples = groups * samples, 2
    if policy_judges(job):
        groups, samples = groups * samples * _messages_a_sample(job), 1
    return bounds_for(
        groups=groups,
        samples_per_group=samples,
        sources=_count_sources(job),
        longest_sequence=_longest_sequence_of_step(job),
        score_bytes_a_token=0 if distribution is None else 8 * distribution.candidates,
        rollout_copies=_count_copies(job),
        context_bytes=context_bytes,
    )


def policy_judges(job: AlignmentJob) -> list[PolicyJudge]:
    """Return the policy's judgements that the job asks for."""
    entries: list[Reward | ValidationScore] = [*job.spec.rewards, *job.spec.validation_scores]
    return [entry.policy_judge for entry in entries if entry.policy_judge is not None]


def _messages_a_sample(job: AlignmentJob) -> int:
    """Return the number of work items and rollouts of a sample: its own, and those of its judgements."""
    return 1 + 2 * len(policy_judges(job))


def _count_sources(job: AlignmentJob) -> int:
    """Return the number of scorers of a sample: rewards, validation scores, and a reference or a teacher."""
    return len(job.spec.rewards) + len(job.spec.validation_scores) + 1


def _count_copies(job: AlignmentJob) -> int:
    """Return the number of times that each sample of a step is published."""
    if job.spec.effective_overlap.score_on_arrival:
        return 1 + _count_group_scorers(job)
    # Scorers that do not score on arrival are each sent every rollout once more.
    return 1 + _count_sources(job)


def _count_group_scorers(job: AlignmentJob) -> int:
    """Return the number of scorers that are sent the samples of a prompt once more, in one message."""
    rewards = sum(reward.scores_groups for reward in job.spec.rewards)
    return rewards + sum(score.scores_groups for score in job.spec.validation_scores)


def _windowed_group_sizes(job: AlignmentJob) -> set[int]:
    """Return the numbers of samples of the groups that are requested within the window."""
    algorithm = job.spec.algorithm.value
    sizes: set[int] = set()
    if algorithm.samples and not algorithm.online and job.spec.algorithm.evaluate is None:
        sizes |= {1, algorithm.samples_per_prompt}
    for rows in job.spec.held_out_rows:
        if rows.sampling is not None:
            sizes.add(rows.sampling.samples_per_prompt)
            if rows.sampling.initial_policy_column is not None:
                sizes.add(1)
        elif algorithm.samples:
            sizes.add(1)
    judge = getattr(algorithm, "judged_by", None)
    return sizes if judge is None else sizes | {judge.samples}


def _longest_sequence(job: AlignmentJob) -> int:
    """Return the assumed tokens of the longest prompt and response, judgements included."""
    judge = getattr(job.spec.algorithm.value, "judged_by", None)
    rollout = job.spec.effective_rollout
    # Responses of a validation may be longer than those of a step.
    longer = 0 if rollout is None else job.spec.max_sampled_tokens - rollout.sampling.max_tokens
    judgement = 0 if judge is None else len(judge.prompt) + judge.max_tokens
    return _longest_sequence_of_step(job) + longer + judgement


def _longest_sequence_of_step(job: AlignmentJob) -> int:
    """Return the assumed tokens of the longest prompt and response of a step, in all their sequences."""
    spec = job.spec
    rollout = spec.effective_rollout
    response = rollout.sampling.max_tokens if rollout is not None else 0
    tokens = (spec.data.value.max_tokens or _DEFAULT_PROMPT_TOKENS) + response
    tokens *= 1 if rollout is None else rollout.max_sequences_per_sample
    # The second response of a comparison is a text of the row, of any length: context_bytes counts it.
    tokens += max((own.template_characters + own.max_tokens for own in policy_judges(job)), default=0)
    template_tokens: int = getattr(spec.algorithm.value, "longest_prompt_template", 0)
    # The prompt of the LLM judge contains two responses.
    return tokens + 2 * response + template_tokens if template_tokens else tokens
