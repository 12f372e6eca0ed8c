"""Payload limits: checks at the start that the longest message of a job fits the message bus."""

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.base import field_alias
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import ReferencePlacement
from kubealign_services.data.prepared import PreparationReport
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.runtime.process.bus_load import (
    TEXT_BYTES_PER_TOKEN,
    initial_policy_bytes,
    policy_judges,
)
from kubealign_services.scoring.group_requests import auxiliary_kinds, group_sources

# A token and its mask, in a reference's request for a given row.
_BYTES_PER_GIVEN_TOKEN = 4 + 1
# A token and its log-probability, as in Score.candidates.
_BYTES_PER_CANDIDATE = 4 + 4
# tokens, loss mask, two log-probabilities and a weight version, as in Rollout.sequence.
_BYTES_PER_TOKEN = 4 + 1 + 4 + 4 + 4
_ENVELOPE_BYTES = 8192
# Digest and numbers of a sample in the request for the scores of its group.
_BYTES_PER_GROUP_SAMPLE = 256


def max_sequence_tokens(job: AlignmentJob, report: PreparationReport) -> int:
    """Return the number of tokens of the longest prompt and response that the job can produce."""
    return report.longest_prompt + job.spec.max_sampled_tokens


def check_payload_limits(
    job: AlignmentJob, report: PreparationReport, max_payload: int, record_bytes: int = 0
) -> None:
    """Raise UnrecoverableError if the longest message of the job exceeds the bus's limit.

    Covers rollouts, the samples of a prompt for a reward of the scope Group, judgements, rows for a
    reference, and a teacher's candidates for the longest response.

    Args:
        max_payload: Limit of the bus in bytes.
        record_bytes: Bytes of a token's recorded experts, which rollouts have with rollout.routingReplay.
    """
    _check_candidates(job, report, max_payload)
    _check_rows(job, report, max_payload)
    _check_judgements(job, report, max_payload)
    _check_policy_judges(job, report, max_payload)
    _check_questions(job, report, max_payload)
    rollout = job.spec.effective_rollout
    if rollout is None:
        return
    context = max(part.longest_context_bytes for part in report.parts) + initial_policy_bytes(job)
    response = job.spec.max_sampled_tokens
    _check_groups(job, context, max_payload)
    is_recorded = rollout.routing_replay
    size = (
        max_sequence_tokens(job, report)
        * rollout.max_sequences_per_sample
        * (_BYTES_PER_TOKEN + record_bytes * is_recorded)
        + response * TEXT_BYTES_PER_TOKEN
        + context
        + _ENVELOPE_BYTES
    )
    if size > max_payload:
        raise UnrecoverableError(
            f"the longest rollout may take {size} bytes, the bus carries messages of at most "
            f"{max_payload}: lower maxTokens of rollout.sampling or validation ({response}) or "
            "data.prompts.maxTokens, or drop long columns"
            + (
                f", or lower rollout.maxSequencesPerSample ({rollout.max_sequences_per_sample})"
                if rollout.max_sequences_per_sample > 1
                else ""
            )
            + (
                f", or set rollout.routingReplay to false ({record_bytes} bytes a token)"
                if is_recorded
                else ""
            )
        )


def _check_groups(job: AlignmentJob, context_bytes: int, max_payload: int) -> None:
    """Check the samples of a prompt, which a reward of the scope Group receives in one message.

    Args:
        context_bytes: Longest prompt and columns of a row.
    """
    algorithm, most_tokens = job.spec.algorithm.value, job.spec.max_sampled_tokens
    samples: dict[str, int] = {}
    if any(reward.scores_groups for reward in job.spec.rewards):
        name = field_alias(Algorithm, job.spec.algorithm.member)
        sampled = getattr(algorithm, "samples_per_prompt", 1)
        samples[f"algorithm.{name}.samplesPerPrompt"] = sampled + len(auxiliary_kinds(job))
    if group_sources(job):
        for rows in job.spec.held_out_rows:
            if rows.sampling is not None:
                field = rows.field("sampling", "samplesPerPrompt").removeprefix("spec.")
                samples[field] = rows.sampling.samples_per_prompt
    for field, count in samples.items():
        text = count * (most_tokens * TEXT_BYTES_PER_TOKEN + _BYTES_PER_GROUP_SAMPLE)
        size = text + context_bytes + _ENVELOPE_BYTES
        if size > max_payload:
            raise UnrecoverableError(
                f"the {count} samples of a prompt may take {size} bytes, the bus carries messages of at most "
                f"{max_payload}, and {', '.join(sorted(group_sources(job)))} scores them together: lower "
                f"{field} or maxTokens of rollout.sampling or validation ({most_tokens}), drop long columns, "
                "or set scope: Sample"
            )


def _check_judgements(job: AlignmentJob, report: PreparationReport, max_payload: int) -> None:
    """Check the judgements of a job that judges its own responses."""
    judge = getattr(job.spec.algorithm.value, "judged_by", None)
    if judge is None:
        return
    # Each judgement carries the question's text.
    question = len(judge.prompt) + max_sequence_tokens(job, report)
    size = (question + judge.max_tokens) * (_BYTES_PER_TOKEN + TEXT_BYTES_PER_TOKEN) + _ENVELOPE_BYTES
    if size > max_payload:
        raise UnrecoverableError(
            f"the longest judgement may take {size} bytes, the bus carries messages of at most "
            f"{max_payload}: lower judge.maxTokens ({judge.max_tokens}) or rollout.sampling.maxTokens "
            f"({job.spec.rollout.sampling.max_tokens})"
        )


def _check_policy_judges(job: AlignmentJob, report: PreparationReport, max_payload: int) -> None:
    """Check the judgements of rewards and validation scores by the policy."""
    # A comparison has a text of the row too: a token has a byte at least.
    row = max(part.longest_context_bytes for part in report.parts) + initial_policy_bytes(job)
    for judge in policy_judges(job):
        tokens = judge.template_characters + max_sequence_tokens(job, report) + row + judge.max_tokens
        size = tokens * (_BYTES_PER_TOKEN + TEXT_BYTES_PER_TOKEN) + _ENVELOPE_BYTES
        if size > max_payload:
            raise UnrecoverableError(
                f"the longest judgement by the policy may take {size} bytes, the bus carries messages of "
                f"at most {max_payload}: lower policyJudge.maxTokens ({judge.max_tokens}), maxTokens of "
                f"rollout.sampling or validation ({job.spec.max_sampled_tokens}), or drop long columns"
            )


def _check_questions(job: AlignmentJob, report: PreparationReport, max_payload: int) -> None:
    """Check the requests of a job whose policy is asked about its own responses."""
    template = getattr(job.spec.algorithm.value, "longest_prompt_template", 0)
    if not template:
        return
    response = job.spec.rollout.sampling.max_tokens
    # A question contains two responses, and a third follows.
    tokens = template + max_sequence_tokens(job, report) + 2 * response
    size = tokens * _BYTES_PER_TOKEN + response * TEXT_BYTES_PER_TOKEN + _ENVELOPE_BYTES
    if size > max_payload:
        raise UnrecoverableError(
            f"the longest question about a response may take {size} bytes, the bus carries messages of at "
            f"most {max_payload}: lower rollout.sampling.maxTokens ({response}) or data.prompts.maxTokens"
        )


def _check_candidates(job: AlignmentJob, report: PreparationReport, max_payload: int) -> None:
    """Check the teacher's candidates for the longest response."""
    algorithm = job.spec.algorithm
    distribution = algorithm.value.teacher_distribution
    if distribution is None:
        return
    name, remedy = algorithm.member, f"data.{job.spec.data.member}.maxTokens"
    longest = max(part.longest_response for part in report.parts)
    if algorithm.value.samples:
        name = f"{field_alias(Algorithm, algorithm.member)}.distribution"
        longest, remedy = job.spec.rollout.sampling.max_tokens, "rollout.sampling.maxTokens"
    size = longest * distribution.candidates * _BYTES_PER_CANDIDATE + _ENVELOPE_BYTES
    if size > max_payload:
        raise UnrecoverableError(
            f"the teacher's candidates for the longest response ({longest} tokens) may take {size} bytes, "
            f"the bus carries messages of at most {max_payload}: lower "
            f"algorithm.{name}.candidates ({distribution.candidates}) or {remedy}"
        )


def _check_rows(job: AlignmentJob, report: PreparationReport, max_payload: int) -> None:
    """Check the rows that a reference in its own process scores."""
    reference = job.spec.effective_reference
    is_sampled = job.spec.algorithm.value.samples
    if is_sampled or reference is None or reference.placement is not ReferencePlacement.OWN:
        return
    # A prompt may be paired with another row's response.
    longest = max(part.longest_prompt + part.longest_response for part in report.parts)
    size = longest * _BYTES_PER_GIVEN_TOKEN + _ENVELOPE_BYTES
    if size > max_payload:
        raise UnrecoverableError(
            f"the longest row ({longest} tokens) may take {size} bytes, the bus carries messages of at most "
            f"{max_payload}: lower data.{job.spec.data.member}.maxTokens, or set reference.placement to "
            "WithTrainer"
        )
