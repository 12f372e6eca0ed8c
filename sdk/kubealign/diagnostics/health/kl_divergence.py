"""Divergence of the policy from the reference."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number

#: Nats a response. The gain of a learned reward is exhausted some tens of nats away from the weights that its
#: data came from (Gao, Schulman & Hilton 2023, figure 1).
FAR, TOO_FAR = 30.0, 100.0
#: Corresponding nats per token: a thousand tokens sum to 30 nats before any of them is unusual.
FAR_PER_TOKEN, TOO_FAR_PER_TOKEN = 0.05, 0.2
#: Growth factor of the KL, window in steps, and minimum nats per response: at the start the KL grows from 0.
GROWTH, GROWTH_STEPS, GROWN = 4.0, 20, 12.0
#: Nats per token. An estimate of either sign fluctuates around 0, but not below 0 for so many steps.
BELOW_ZERO, BELOW_ZERO_STEPS = -0.02, 10


def check_kl_divergence(job: ObservedJob) -> Iterator[HealthFinding]:
    a_token, a_response = (
        job.series.recent_median("kl/reference"),
        job.series.recent_median("kl/reference_sequence"),
    )
    if a_token is None or a_response is None:
        return
    before = job.series.values("kl/reference_sequence")[: -GROWTH_STEPS or None][-GROWTH_STEPS:]
    grown_from = sorted(before)[len(before) // 2] if len(before) == GROWTH_STEPS else None
    growing = grown_from is not None and a_response >= max(GROWN, GROWTH * grown_from)
    far = a_response >= FAR and a_token >= FAR_PER_TOKEN
    if far or growing:
        too_far = a_response >= TOO_FAR and a_token >= TOO_FAR_PER_TOKEN
        since = (
            f"; {GROWTH_STEPS} steps before it was {format_number(grown_from)}"
            if grown_from is not None
            else ""
        )
        yield HealthFinding(
            Severity.CRITICAL if too_far else Severity.WARNING,
            "The KL is running away",
            f"The policy is {format_number(a_response)} nats a response from the reference "
            f"({format_number(a_token)} a token){since}.",
            "Raise the KL's coefficient or lower the learning rate, and resume from a checkpoint before it "
            "rose. Read the samples of the best reward: they often show how the reward is gamed.",
            "kl/reference_sequence",
            "kl-running-away",
        )
    low = job.series.recent_median("kl/reference", BELOW_ZERO_STEPS)
    if low is not None and low < BELOW_ZERO:
        yield HealthFinding(
            Severity.WARNING,
            "The KL is below zero",
            f"It is {format_number(low)} nats a token over {BELOW_ZERO_STEPS} steps; a divergence cannot be.",
            "The log-probabilities of policy and reference are not of the same tokens or the same "
            "temperature: compare the reference's model and tokenizer with the policy's.",
            "kl/reference",
            "kl-below-zero",
        )
