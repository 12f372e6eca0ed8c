"""Health of the policy's optimiser steps: entropy, clipping, gradient spikes."""

from collections.abc import Iterator
from statistics import median

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number, format_share
from kubealign.role_specs import ROLE_SPECS

#: Collapsed entropy in nats, and as a share of the initial entropy: some models start low.
COLLAPSED, COLLAPSED_SHARE = 0.02, 0.1
#: Rise over the initial entropy, as a factor and in nats.
NOISE_TIMES, NOISE_ABOVE = 2.5, 1.0
#: Share of clipped tokens above which the clip is no exception.
CLIPPED = 0.3
#: Nats per token within one step: the updates have moved far from the sampling policy.
APPROX_KL = 0.1
#: Factor over the median of the steps before that makes a spike, window sizes, and number of spikes: a single
#: one may be due to a batch.
SPIKE, BEFORE, WATCHED, SPIKES = 10.0, 20, 10, 2


def check_policy_update(job: ObservedJob) -> Iterator[HealthFinding]:
    yield from _entropy(job)
    yield from _clipping(job)
    for role in ROLE_SPECS.values():
        if role.trains:
            yield from _spikes(job, role.name)


def _entropy(job: ObservedJob) -> Iterator[HealthFinding]:
    first, now = job.series.initial_median("policy/entropy"), job.series.recent_median("policy/entropy")
    if first is None or now is None:
        return
    if now < COLLAPSED and now < COLLAPSED_SHARE * first:
        yield HealthFinding(
            Severity.WARNING,
            "The entropy has collapsed",
            f"It is {format_number(now)} nats a token and was {format_number(first)} at the start: "
            "the policy gives one answer only.",
            "Unless the reward is as high as it can be: set entropyCoefficient, raise the clip's upper "
            "bound, or lower the learning rate, and resume from an earlier checkpoint.",
            "policy/entropy",
            "entropy-collapse",
        )
    if now > NOISE_TIMES * first and now > first + NOISE_ABOVE:
        yield HealthFinding(
            Severity.WARNING,
            "The entropy rises",
            f"It is {format_number(now)} nats a token and was {format_number(first)} at the start: "
            "the policy becomes noise.",
            "Lower entropyCoefficient and the learning rate, and check if the reward can be gained by "
            "rambling.",
            "policy/entropy",
            "entropy-rising",
        )


def _clipping(job: ObservedJob) -> Iterator[HealthFinding]:
    clipped, moved = (
        job.series.recent_median("policy/clip_fraction"),
        job.series.recent_median("policy/approx_kl"),
    )
    if clipped is not None and clipped > CLIPPED:
        yield HealthFinding(
            Severity.WARNING,
            "The clip takes much of the gradient",
            f"{format_share(clipped)} of the tokens (RLOO: of the responses) are clipped.",
            "Steps are too large: lower the learning rate, take fewer epochsPerStep, or make minibatches "
            "larger.",
            "policy/clip_fraction",
            "clip-fraction",
        )
    elif moved is not None and moved > APPROX_KL:
        yield HealthFinding(
            Severity.WARNING,
            "A step moves the policy far",
            f"The policy is {format_number(moved)} nats a token from the one that sampled the batch.",
            "Lower the learning rate, or take fewer epochsPerStep.",
            "policy/approx_kl",
            "clip-fraction",
        )


def _spikes(job: ObservedJob, role: str) -> Iterator[HealthFinding]:
    name = f"{role}/gradient_norm"
    points = job.series.points(name)
    spikes = []
    for index in range(max(BEFORE, len(points) - WATCHED), len(points)):
        usual = median(value for _, value in points[index - BEFORE : index])
        step, value = points[index]
        if value > SPIKE * usual > 0:
            spikes.append((step, value, usual))
    if len(spikes) >= SPIKES:
        step, value, usual = max(spikes, key=lambda spike: spike[1])
        yield HealthFinding(
            Severity.WARNING,
            f"The {role}'s gradient spikes",
            f"{len(spikes)} of the last {WATCHED} steps; step {step} has a norm of {format_number(value)}, "
            f"where {format_number(usual)} is usual.",
            "It often comes before a collapse. Look at that step's samples; set gradientClipNorm, lower "
            "the learning rate, or warm up longer.",
            name,
            "gradient-spikes",
        )
