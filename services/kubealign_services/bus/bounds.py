"""How much the bus keeps of each subject. Old messages make room for new ones: the checkpoint is the
truth."""

from dataclasses import dataclass

SUBJECTS = ("work", "rollouts", "scores", "refit", "refit-acks")

# A step-load is what the algorithm has under way at once; twice that, so that a slow reader loses nothing.
_LOADS = 2
# Room for validation, whose size the step does not tell, and for what surrounds the tokens.
_LEAST_MESSAGES = 65_536
_LEAST_BYTES = 64 << 20
_ENVELOPE_BYTES = 4096
# Token, mask, version and two log-probabilities as in Rollout.sequence, and the text.
_BYTES_A_TOKEN = 32


@dataclass(frozen=True)
class Bounds:
    """The most that one subject keeps."""

    messages: int
    size_bytes: int


def bounds_for(
    groups: int, samples_per_group: int, sources: int, longest_sequence: int, score_bytes_a_token: int = 0
) -> dict[str, Bounds]:
    """Bounds of every subject, for two full loads at least.

    groups: the most that are under way at once, (maxStaleness + 1) * promptsPerStep. sources: scorers of each
    sample, rewards and reference. longest_sequence: tokens of prompt and response. score_bytes_a_token: where
    a scorer says more of a token than a number."""
    samples = groups * samples_per_group
    message = _ENVELOPE_BYTES + longest_sequence * _BYTES_A_TOKEN
    score = _ENVELOPE_BYTES + longest_sequence * max(_BYTES_A_TOKEN, score_bytes_a_token)
    counts = {
        "work": groups,
        "rollouts": samples,
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
    return bounds
