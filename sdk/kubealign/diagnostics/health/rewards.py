"""Health of the rewards: learning signal and reward gaming."""

from collections.abc import Iterator

from kubealign.diagnostics.health.finding import HealthFinding, Severity
from kubealign.diagnostics.health.observed_job import ObservedJob, format_number, format_share
from kubealign.spec.algorithms import ResultKind

#: Relative to the reward's size: smaller differences count as equal.
SAME = 1e-6
#: Share of groups with advantage 0.
CONSTANT = 0.9
#: A held-out score has fallen when two consecutive measurements are below the best by this share of its size
#: and by this absolute amount; the reward has risen when it is up by this share of its standard deviation.
FALLEN_SHARE, FALLEN, RISEN_SHARE = 0.1, 0.05, 0.25
_MEASUREMENTS = 4
#: Metrics on held-out prompts that are not scores.
_NOT_SCORES = ("val/reward/", "val/response_length", "val/truncated_share", "val/loss", "val/margin")


def check_rewards(job: ObservedJob) -> Iterator[HealthFinding]:
    if job.result_kind in (ResultKind.DATA, ResultKind.METRICS) or job.learns_without_rewards:
        return
    mean, std = job.series.recent_median("reward/mean"), job.series.recent_median("reward/std")
    if mean is not None and std is not None and std <= SAME * max(1.0, abs(mean)):
        yield HealthFinding(
            Severity.WARNING,
            "All rewards are alike",
            f"reward/std is {format_number(std)}, the mean {format_number(mean)}: "
            "the reward carries no learning signal.",
            "Check the rewards of a few samples: the reward may fail on all of them, be clipped, or the "
            "task may be solved.",
            "reward/std",
            "rewards-alike",
        )
    constant = job.series.recent_median("reward/constant_groups")
    if constant is not None and constant >= CONSTANT:
        yield HealthFinding(
            Severity.WARNING,
            "Groups have no advantage",
            f"{format_share(constant)} of the groups have the same reward for all of their samples.",
            "Prompts are too easy or too hard: leave out those that are always or never solved, or raise "
            "samplesPerPrompt.",
            "reward/constant_groups",
            "constant-groups",
        )
    for name in sorted(job.series.names):
        if name.startswith("val/") and not name.startswith(_NOT_SCORES):
            yield from _gaming(job, name)


def _gaming(job: ObservedJob, name: str) -> Iterator[HealthFinding]:
    points = job.series.points(name)
    spread = job.series.recent_median("reward/std")
    if len(points) < _MEASUREMENTS or spread is None:
        return
    at, best = max(points[:-2], key=lambda point: point[1])
    drop = max(FALLEN, FALLEN_SHARE * abs(best))
    then, now = job.series.median_before("reward/mean", at), job.series.recent_median("reward/mean")
    if then is None or now is None or any(best - value < drop for _, value in points[-2:]):
        return
    if now - then >= RISEN_SHARE * spread > 0:
        yield HealthFinding(
            Severity.WARNING,
            "The reward rises while a held-out score falls",
            f"{name} is {format_number(points[-1][1])} and was {format_number(best)} at step {at}; the "
            f"reward has gone from {format_number(then)} to {format_number(now)}.",
            "The reward is being gamed. Take the weights of the best held-out score; raise the KL's "
            "coefficient, stop earlier, or fix the reward.",
            name,
            "reward-gaming",
        )
