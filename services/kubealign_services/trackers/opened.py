"""Creates the trackers that a job names."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign.spec.trackers import JsonLines, Mlflow, TensorBoard, TrackerPlugin, WeightsAndBiases
from kubealign.spec.trackers import Tracker as TrackerSpec
from kubealign_services.trackers import json_lines, mlflow_run, plugin, tensorboard, weights_and_biases
from kubealign_services.trackers.background import BackgroundTracker
from kubealign_services.trackers.contract import Library, TrackedJob, Tracker, folder_of

_LIBRARIES = {
    TensorBoard: Library("tensorboard"),
    WeightsAndBiases: Library("wandb"),
    Mlflow: Library("mlflow"),
}


def opened(job: AlignmentJob, run_dir: Path) -> list[BackgroundTracker]:
    """Start each tracker on a thread of its own. Raises TrackerNotInstalled or PluginError before any is
    started.
    """
    for spec in job.spec.trackers:
        library = _LIBRARIES.get(type(spec.value))
        if library is not None:
            library.check(spec.name)
        if spec.plugin is not None:
            plugin.check_installed(spec.plugin, spec.name)
    tracked = TrackedJob(
        name=job.name,
        namespace=job.metadata.namespace,
        spec=without_pods(job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)),
    )
    return [
        BackgroundTracker(spec.name, opener(spec, tracked, folder_of(run_dir, spec.name)))
        for spec in job.spec.trackers
    ]


def without_pods(held: Any) -> Any:
    """Return a part of a spec without its podTemplates, whose environment variables may hold secrets."""
    if isinstance(held, dict):
        return {name: without_pods(value) for name, value in held.items() if name != "podTemplate"}
    if isinstance(held, list):
        return [without_pods(value) for value in held]
    return held


def opener(spec: TrackerSpec, job: TrackedJob, folder: Path) -> Callable[[], Tracker]:
    """Return a function that creates the tracker of the spec."""
    match spec.value:
        case TensorBoard():
            return partial(tensorboard.TensorBoardWriter, job, folder)
        case WeightsAndBiases() as settings:
            return partial(weights_and_biases.WeightsAndBiasesWriter, job, settings, folder)
        case Mlflow() as settings:
            return partial(mlflow_run.MlflowWriter, job, settings, folder)
        case JsonLines():
            return partial(json_lines.JsonLinesWriter, folder)
        case TrackerPlugin() as settings:
            return partial(plugin.make, settings, spec.name, job, folder)
