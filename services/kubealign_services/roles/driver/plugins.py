"""Checks the plugins of a job before anything starts."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.scoring.functions.plugin import check_plugin_installed
from kubealign_services.telemetry.trackers.plugin import check_parameters


def check_plugins(job: AlignmentJob) -> None:
    """Check that the algorithm, the rewards and the trackers from other packages exist.

    Creates the algorithm. A reward is imported only in its own process, which can be killed. Raises
    LookupError.
    """
    if job.spec.algorithm.value.trains:
        make_algorithm(job.spec.algorithm)
    for reward in job.spec.rewards:
        if reward.plugin is not None:
            check_plugin_installed(reward.plugin.name, reward.name)
    for tracker in job.spec.trackers:
        if tracker.plugin is not None:
            check_parameters(tracker.plugin, tracker.name)
