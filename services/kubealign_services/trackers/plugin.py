"""A tracker of another package."""

from pathlib import Path

from kubealign.spec.trackers import TrackerPlugin
from kubealign_services.plugins import TRACKERS, check_takes, found, imported
from kubealign_services.trackers.contract import TrackedJob, Tracker


def check_installed(plugin: TrackerPlugin, tracker: str) -> None:
    """Whether it is there; nothing is imported. Raises PluginError."""
    found(TRACKERS, plugin.name, _place(tracker, "name"))


def check_parameters(plugin: TrackerPlugin, tracker: str) -> None:
    """Whether it can be made with its parameters. Raises PluginError."""
    check_takes(
        imported(TRACKERS, plugin.name, _place(tracker, "name")),
        2,
        plugin.parameters,
        _place(tracker, "parameters"),
    )


def make(plugin: TrackerPlugin, tracker: str, job: TrackedJob, folder: Path) -> Tracker:
    """What the entry point gives when it is called with the job, a folder of its own and the parameters."""
    called = imported(TRACKERS, plugin.name, _place(tracker, "name"))
    tracked: Tracker = called(job, folder, **plugin.parameters)
    return tracked


def _place(tracker: str, field: str) -> str:
    return f"spec.trackers, {tracker}: plugin.{field}"
