"""Retention bounds of each bus subject.

Old messages make room for new ones: the checkpoint is the source of truth.
"""

from dataclasses import dataclass

# A load is the number of messages in flight at once; twice that is kept, so that slow readers lose nothing.
_LOADS = 2
# Minimum for validation, whose size is independent of the step, and overhead of a message besides its tokens.
_LEAST_MESSAGES = 65_536
_LEAST_BYTES = 64 << 20
_ENVELOPE_BYTES = 4096
# Announcements of environment workers, which are outdated after seconds.
_ANNOUNCEMENTS = 16_384
# Token, mask, version and two log-probabilities as in Rollout.sequence, and the text.
_BYTES_A_TOKEN = 32


@dataclass(frozen=True)
class Bounds:
    """Retention limits of one subject."""

    messages: int
    size_bytes: int

    def combine(self, other: "Bounds") -> "Bounds":
        """Return the larger limits of both."""
        return Bounds(max(self.messages, other.messages), max(self.size_bytes, other.size_bytes))


def message_bytes(longest_sequence: int) -> int:
    """Return the size in bytes of the message of a sequence of `longest_sequence` tokens."""
    return _ENVELOPE_BYTES + longest_sequence * _BYTES_A_TOKEN


def bounds_for(
    groups: int,
    samples_per_group: int,
    sources: int,
    longest_sequence: int,
    score_bytes_a_token: int = 0,
    rollout_copies: int = 1,
    context_bytes: int = 0,
) -> dict[str, Bounds]:
    """Return the bounds of every subject, sized for at least two full loads.

    Args:
        groups: Maximum number of groups in flight, (maxStaleness + 1) * promptsPerStep.
        sources: Scorers of each sample: rewards and reference.
        longest_sequence: Tokens of prompt and response.
        score_bytes_a_token: Set when a scorer returns more than one number for each token.
        rollout_copies: Number of times that each rollout is published.
        context_bytes: Longest prompt and columns of a row, which each work item and each rollout carries.
    """
    samples = groups * samples_per_group
    message = message_bytes(longest_sequence) + context_bytes
    score = _ENVELOPE_BYTES + longest_sequence * max(_BYTES_A_TOKEN, score_bytes_a_token)
    counts = {
        "work": groups,
        "rollouts": samples * rollout_copies,
        "scores": samples * max(1, sources),
        "refit-acks": 0,
    }
    bounds = {
        subject: Bounds(
            messages=max(_LEAST_MESSAGES, _LOADS * count),
            size_bytes=max(_LEAST_BYTES, _LOADS * count * (score if subject == "scores" else message)),
        )
        for subject, count in counts.items()
    }
    bounds["refit"] = Bounds(messages=1, size_bytes=_LEAST_BYTES)
    bounds["environments"] = Bounds(messages=_ANNOUNCEMENTS, size_bytes=_LEAST_BYTES)
    return bounds
