"""Creates the trackers that a job names."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kubealign.spec.base import SpecModel
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.trackers import (
    JsonLinesTracker,
    MlflowTracker,
    SwanLabTracker,
    TensorBoardTracker,
    TrackerPlugin,
    TrackerSpec,
    TrackioTracker,
    WeightsAndBiasesTracker,
)
from kubealign_services.telemetry.trackers import (
    json_lines,
    mlflow_run,
    plugin,
    tensorboard,
    weights_and_biases,
)
from kubealign_services.telemetry.trackers.background import BackgroundTracker
from kubealign_services.telemetry.trackers.contract import (
    RequiredLibrary,
    TrackedJob,
    Tracker,
    get_or_create_run_id,
    make_tracker_folder,
)
from kubealign_services.telemetry.trackers.separate_process.environment import find_tracker_python
from kubealign_services.telemetry.trackers.separate_process.library_client import LibraryClient

_LIBRARIES = {
    TensorBoardTracker: RequiredLibrary("tensorboard"),
    WeightsAndBiasesTracker: RequiredLibrary("wandb"),
    MlflowTracker: RequiredLibrary("mlflow"),
}
#: Libraries that run in the trackers' own environment.
_SEPARATE_LIBRARIES: dict[type[SpecModel], str] = {SwanLabTracker: "swanlab", TrackioTracker: "trackio"}


def open_trackers(job: AlignmentJob, run_dir: Path) -> list[BackgroundTracker]:
    """Start each tracker on a thread of its own.

    Raises TrackerNotInstalled or PluginError before any is started.
    """
    for spec in job.spec.trackers:
        library = _LIBRARIES.get(type(spec.value))
        if library is not None:
            library.check(spec.name)
        if (separate := _SEPARATE_LIBRARIES.get(type(spec.value))) is not None:
            find_tracker_python(spec.name, separate)
        if spec.plugin is not None:
            plugin.check_installed(spec.plugin, spec.name)
    tracked = TrackedJob(
        name=job.name,
        namespace=job.metadata.namespace,
        spec=strip_pod_templates(job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)),
    )
    return [
        BackgroundTracker(
            spec.name,
            tracker_factory(spec, tracked, make_tracker_folder(run_dir, spec.name)),
            completions=spec.completions,
        )
        for spec in job.spec.trackers
    ]


def strip_pod_templates(value: Any) -> Any:
    """Return a part of a spec without its podTemplates, whose environment variables may hold secrets."""
    if isinstance(value, dict):
        return {name: strip_pod_templates(item) for name, item in value.items() if name != "podTemplate"}
    if isinstance(value, list):
        return [strip_pod_templates(item) for item in value]
    return value


def tracker_factory(spec: TrackerSpec, job: TrackedJob, folder: Path) -> Callable[[], Tracker]:
    """Return a function that creates the tracker of the spec."""
    match spec.value:
        case TensorBoardTracker():
            return partial(tensorboard.TensorBoardWriter, job, folder)
        case WeightsAndBiasesTracker() as settings:
            return partial(weights_and_biases.WeightsAndBiasesWriter, job, settings, folder)
        case MlflowTracker() as settings:
            return partial(mlflow_run.MlflowWriter, job, settings, folder)
        case SwanLabTracker() as settings:
            document = settings.model_dump(mode="json") | {"run_id": get_or_create_run_id(folder)}
            return _separate_tracker(spec.name, "swanlab", document, job, folder)
        case TrackioTracker() as settings:
            return _separate_tracker(spec.name, "trackio", settings.model_dump(mode="json"), job, folder)
        case JsonLinesTracker():
            return partial(json_lines.JsonLinesWriter, folder)
        case TrackerPlugin() as settings:
            return partial(plugin.make_plugin_tracker, settings, spec.name, job, folder)


def _separate_tracker(
    name: str, library: str, settings: dict[str, Any], job: TrackedJob, folder: Path
) -> Callable[[], Tracker]:
    """Return a function that starts the library's process."""
    return partial(LibraryClient, find_tracker_python(name, library), library, settings, job, folder)
