"""Health of the critic."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number, format_share

#: Steps after the warm-up in which a critic may be worse than a constant, and the window of steps examined.
PATIENCE, STEPS = 20, 10
#: Share of clipped values.
CLIPPED = 0.5


def check_critic(job: ObservedJob) -> Iterator[HealthFinding]:
    name = "critic/explained_variance"
    done = len(job.series.values(name)) - job.algorithm_number("criticWarmupSteps", 0)
    explained = job.series.recent_median(name, STEPS)
    if done >= PATIENCE + STEPS and explained is not None and explained < 0:
        yield HealthFinding(
            Severity.WARNING,
            "The critic is worse than a constant",
            f"It explains {format_number(explained)} of the returns' variance over {STEPS} steps, "
            f"{done:.0f} steps after its warm-up: advantages are noise.",
            "Raise the critic's learning rate or criticWarmupSteps, start it from the reward model, or "
            "standardise the reward.",
            name,
            "critic-behind",
        )
    clipped = job.series.recent_median("critic/clip_fraction")
    if clipped is not None and clipped > CLIPPED:
        yield HealthFinding(
            Severity.WARNING,
            "The value clip holds the critic back",
            f"{format_share(clipped)} of its values are clipped.",
            "valueClip is small for this reward's scale: raise it, set it to 0, or standardise the reward.",
            "critic/clip_fraction",
            "critic-behind",
        )
