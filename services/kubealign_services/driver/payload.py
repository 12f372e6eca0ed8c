"""Whether the longest message that a job can make fits the bus: asked at the start, not found out in the
night."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import Report
from kubealign_services.driver.failures import JobFailed

# tokens, loss mask, two log-probabilities and a weight version, as in Rollout.sequence; text in UTF-8.
_BYTES_A_TOKEN = 4 + 1 + 4 + 4 + 4
_TEXT_BYTES_A_TOKEN = 16
_ENVELOPE_BYTES = 8192


def longest_sequence(job: AlignmentJob, report: Report) -> int:
    """Tokens of the longest prompt and response that the job can make."""
    rollout = job.spec.effective_rollout
    longest = max(part.longest_prompt for part in (report.train, report.validation) if part is not None)
    return longest + (rollout.sampling.max_tokens if rollout else 0)


def check_payload(job: AlignmentJob, report: Report, max_payload: int) -> None:
    """Raises JobFailed when the longest rollout could not be sent. max_payload in bytes."""
    rollout = job.spec.effective_rollout
    if rollout is None:
        return
    context = max(
        part.longest_context_bytes for part in (report.train, report.validation) if part is not None
    )
    size = (
        longest_sequence(job, report) * _BYTES_A_TOKEN
        + rollout.sampling.max_tokens * _TEXT_BYTES_A_TOKEN
        + context
        + _ENVELOPE_BYTES
    )
    if size > max_payload:
        raise JobFailed(
            f"the longest rollout may take {size} bytes, the bus carries messages of at most "
            f"{max_payload}: lower rollout.sampling.maxTokens ({rollout.sampling.max_tokens}) or "
            "data.prompts.maxTokens, or drop long columns"
        )
