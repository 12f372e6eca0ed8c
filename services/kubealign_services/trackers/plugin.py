"""Trackers of other packages."""

from pathlib import Path

from kubealign.spec.trackers import TrackerPlugin
from kubealign_services.plugins import TRACKERS, check_takes, found, imported
from kubealign_services.trackers.contract import TrackedJob, Tracker


def check_installed(plugin: TrackerPlugin, tracker: str) -> None:
    """Raise PluginError when the plugin is not installed. Nothing is imported."""
    found(TRACKERS, plugin.name, _place(tracker, "name"))


def check_parameters(plugin: TrackerPlugin, tracker: str) -> None:
    """Raise PluginError when the plugin cannot be created with its parameters."""
    check_takes(
        imported(TRACKERS, plugin.name, _place(tracker, "name")),
        2,
        plugin.parameters,
        _place(tracker, "parameters"),
    )


def make(plugin: TrackerPlugin, tracker: str, job: TrackedJob, folder: Path) -> Tracker:
    """Create the tracker by calling the entry point with the job, a folder of its own and the parameters."""
    create = imported(TRACKERS, plugin.name, _place(tracker, "name"))
    tracked: Tracker = create(job, folder, **plugin.parameters)
    return tracked


def _place(tracker: str, field: str) -> str:
    return f"spec.trackers, {tracker}: plugin.{field}"
