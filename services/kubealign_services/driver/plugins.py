"""Whether what a job takes from other packages is there: asked once, before anything starts."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.loading import make_algorithm
from kubealign_services.scoring.plugin import check_installed
from kubealign_services.trackers.plugin import check_parameters


def check_plugins(job: AlignmentJob) -> None:
    """Make the algorithm, look for the rewards and the trackers. A reward is imported where it runs, in a
    process that can be ended. Raises LookupError."""
    if job.spec.algorithm.value.trains:
        make_algorithm(job.spec.algorithm)
    for reward in job.spec.rewards:
        if reward.plugin is not None:
            check_installed(reward.plugin.name, reward.name)
    for tracker in job.spec.trackers:
        if tracker.plugin is not None:
            check_parameters(tracker.plugin, tracker.name)
