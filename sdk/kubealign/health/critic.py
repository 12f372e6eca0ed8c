"""Health of the critic."""

from collections.abc import Iterator

from kubealign.health.case import Case, share, shown
from kubealign.health.finding import Finding, Severity

#: Steps after the warm-up in which a critic may be worse than a constant, and the window of steps examined.
PATIENCE, STEPS = 20, 10
#: Share of clipped values.
CLIPPED = 0.5


def critic(case: Case) -> Iterator[Finding]:
    name = "critic/explained_variance"
    done = len(case.series.values(name)) - case.of_algorithm("criticWarmupSteps", 0)
    explained = case.series.now(name, STEPS)
    if done >= PATIENCE + STEPS and explained is not None and explained < 0:
        yield Finding(
            Severity.WARNING,
            "The critic is worse than a constant",
            f"It explains {shown(explained)} of the returns' variance over {STEPS} steps, {done:.0f} steps "
            "after its warm-up: advantages are noise.",
            "Raise the critic's learning rate or criticWarmupSteps, start it from the reward model, or "
            "standardise the reward.",
            name,
            "critic-behind",
        )
    clipped = case.series.now("critic/clip_fraction")
    if clipped is not None and clipped > CLIPPED:
        yield Finding(
            Severity.WARNING,
            "The value clip holds the critic back",
            f"{share(clipped)} of its values are clipped.",
            "valueClip is small for this reward's scale: raise it, set it to 0, or standardise the reward.",
            "critic/clip_fraction",
            "critic-behind",
        )
