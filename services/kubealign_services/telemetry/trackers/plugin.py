"""Trackers of other packages."""

from pathlib import Path

from kubealign.spec.sections.trackers import TrackerPlugin
from kubealign_services.runtime.plugins import TRACKERS, check_signature, find_entry_point, load_entry_point
from kubealign_services.telemetry.trackers.contract import TrackedJob, Tracker


def check_installed(plugin: TrackerPlugin, tracker: str) -> None:
    """Raise PluginError when the plugin is not installed. Nothing is imported."""
    find_entry_point(TRACKERS, plugin.name, _field_path(tracker, "name"))


def check_parameters(plugin: TrackerPlugin, tracker: str) -> None:
    """Raise PluginError when the plugin cannot be created with its parameters."""
    check_signature(
        load_entry_point(TRACKERS, plugin.name, _field_path(tracker, "name")),
        2,
        plugin.parameters,
        _field_path(tracker, "parameters"),
    )


def make_plugin_tracker(plugin: TrackerPlugin, tracker: str, job: TrackedJob, folder: Path) -> Tracker:
    """Create the tracker by calling the entry point with the job, a folder of its own and the parameters."""
    create = load_entry_point(TRACKERS, plugin.name, _field_path(tracker, "name"))
    tracked: Tracker = create(job, folder, **plugin.parameters)
    return tracked


def _field_path(tracker: str, field: str) -> str:
    return f"spec.trackers, {tracker}: plugin.{field}"
