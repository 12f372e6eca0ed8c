"""Health of the rewards: learning signal and reward gaming."""

from collections.abc import Iterator

from kubealign.health.case import Case, share, shown
from kubealign.health.finding import Finding, Severity
from kubealign.spec.algorithms import Makes

#: Relative to the reward's size: smaller differences count as equal.
SAME = 1e-6
#: Share of groups with advantage 0.
CONSTANT = 0.9
#: A held-out score has fallen when two consecutive measurements are below the best by this share of its size
#: and by this absolute amount; the reward has risen when it is up by this share of its standard deviation.
FALLEN_SHARE, FALLEN, RISEN_SHARE = 0.1, 0.05, 0.25
_MEASUREMENTS = 4
#: Metrics on held-out prompts that are not scores.
_NO_SCORE = ("val/reward/", "val/response_length", "val/truncated_share", "val/loss", "val/margin")


def rewards(case: Case) -> Iterator[Finding]:
    if case.makes is Makes.DATA:
        # Such jobs do not learn from rewards.
        return
    mean, std = case.series.now("reward/mean"), case.series.now("reward/std")
    if mean is not None and std is not None and std <= SAME * max(1.0, abs(mean)):
        yield Finding(
            Severity.WARNING,
            "All rewards are alike",
            f"reward/std is {shown(std)}, the mean {shown(mean)}: there is nothing to learn from.",
            "Check the rewards of a few samples: the reward may fail on all of them, be clipped, or the "
            "task may be solved.",
            "reward/std",
            "rewards-alike",
        )
    constant = case.series.now("reward/constant_groups")
    if constant is not None and constant >= CONSTANT:
        yield Finding(
            Severity.WARNING,
            "Groups have no advantage",
            f"{share(constant)} of the groups have the same reward for all of their samples.",
            "Prompts are too easy or too hard: leave out those that are always or never solved, or raise "
            "samplesPerPrompt.",
            "reward/constant_groups",
            "constant-groups",
        )
    for name in sorted(case.series.names):
        if name.startswith("val/") and not name.startswith(_NO_SCORE):
            yield from _gaming(case, name)


def _gaming(case: Case, name: str) -> Iterator[Finding]:
    points = case.series.points(name)
    spread = case.series.now("reward/std")
    if len(points) < _MEASUREMENTS or spread is None:
        return
    at, best = max(points[:-2], key=lambda point: point[1])
    drop = max(FALLEN, FALLEN_SHARE * abs(best))
    then, now = case.series.around("reward/mean", at), case.series.now("reward/mean")
    if then is None or now is None or any(best - value < drop for _, value in points[-2:]):
        return
    if now - then >= RISEN_SHARE * spread > 0:
        yield Finding(
            Severity.WARNING,
            "The reward rises while a held-out score falls",
            f"{name} is {shown(points[-1][1])} and was {shown(best)} at step {at}; the reward has gone from "
            f"{shown(then)} to {shown(now)}.",
            "The reward is being gamed. Take the weights of the best held-out score; raise the KL's "
            "coefficient, stop earlier, or fix the reward.",
            name,
            "reward-gaming",
        )
