"""The trackers that a job names, at work."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign.spec.trackers import JsonLines, Mlflow, TensorBoard, TrackerPlugin, WeightsAndBiases
from kubealign.spec.trackers import Tracker as TrackerSpec
from kubealign_services.trackers import plugin
from kubealign_services.trackers.background import BackgroundTracker
from kubealign_services.trackers.contract import Library, TrackedJob, Tracker, folder_of
from kubealign_services.trackers.json_lines import JsonLinesTracker
from kubealign_services.trackers.mlflow_run import MlflowTracker
from kubealign_services.trackers.tensorboard import TensorBoardTracker
from kubealign_services.trackers.weights_and_biases import WeightsAndBiasesTracker

_LIBRARIES = {
    TensorBoard: Library("tensorboard"),
    WeightsAndBiases: Library("wandb"),
    Mlflow: Library("mlflow"),
}


def opened(job: AlignmentJob, run_dir: Path) -> list[BackgroundTracker]:
    """Each on a thread of its own. Raises NotInstalled or PluginError, before any is begun."""
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
    """A part of a spec without its podTemplates: what stands in a pod's environment is told to nobody."""
    if isinstance(held, dict):
        return {name: without_pods(value) for name, value in held.items() if name != "podTemplate"}
    if isinstance(held, list):
        return [without_pods(value) for value in held]
    return held


def opener(spec: TrackerSpec, job: TrackedJob, folder: Path) -> Callable[[], Tracker]:
    """Makes the tracker that the spec names."""
    match spec.value:
        case TensorBoard():
            return partial(TensorBoardTracker, job, folder)
        case WeightsAndBiases() as held:
            return partial(WeightsAndBiasesTracker, job, held, folder)
        case Mlflow() as held:
            return partial(MlflowTracker, job, held, folder)
        case JsonLines():
            return partial(JsonLinesTracker, folder)
        case TrackerPlugin() as held:
            return partial(plugin.make, held, spec.name, job, folder)
