"""Experiment trackers that receive a job's metrics."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    HTTP_ADDRESS_PATTERN,
    SWANLAB_PROJECT_PATTERN,
    SWANLAB_WORKSPACE_PATTERN,
    EntryName,
    ShortText,
    SpecModel,
    field_errors,
    require_exactly_one,
)

#: Messages for a Trackio tracker.
ONE_TRACKIO_DESTINATION = "the metrics go to a server or to a space: remove serverUrl or space"
NO_TRACKIO_TOKEN = "must have no write_token in it: the driver reads it from TRACKIO_WRITE_TOKEN"

HttpAddress: TypeAlias = Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)]


SwanLabProject: TypeAlias = Annotated[
    str, Field(pattern=SWANLAB_PROJECT_PATTERN, min_length=1, max_length=100)
]
SwanLabWorkspace: TypeAlias = Annotated[
    str, Field(pattern=SWANLAB_WORKSPACE_PATTERN, min_length=1, max_length=25)
]


class TensorBoardTracker(SpecModel):
    """Event files in trackers/NAME of the run directory, for `tensorboard --logdir`."""


class TrackerMode(StrEnum):
    """Online: metrics are sent while the job runs.

    Offline: metrics are written to trackers/NAME of the run directory, for a later upload.
    """

    ONLINE = "Online"
    OFFLINE = "Offline"


class WeightsAndBiasesTracker(SpecModel):
    """A run of Weights & Biases.

    The API key is read from WANDB_API_KEY in the driver's environment, never from the job.
    """

    project: ShortText = Field("kubealign", description="Project of the run.")
    entity: ShortText | None = Field(
        None, description="Team or user; null: the default entity of the API key."
    )
    mode: TrackerMode = Field(TrackerMode.ONLINE, description="Transmission of the metrics.")
    base_url: HttpAddress | None = Field(
        None,
        description="URL of a self-hosted server; null: WANDB_BASE_URL, otherwise the public server.",
    )


class MlflowTracker(SpecModel):
    """A run of MLflow.

    Credentials are read from the driver's environment (MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME
    and MLFLOW_TRACKING_PASSWORD), never from the job.
    """

    tracking_uri: HttpAddress | None = Field(
        None, description="URL of the tracking server; null: files in trackers/NAME of the run directory."
    )
    experiment: ShortText = Field(
        "kubealign", description="Name of the experiment, created if it does not exist."
    )


class SwanLabTracker(SpecModel):
    """A run of SwanLab, in a process of its own.

    The API key is read from SWANLAB_API_KEY in the driver's environment, never from the job.
    """

    project: SwanLabProject = Field("kubealign", description="Project of the run.")
    workspace: SwanLabWorkspace | None = Field(
        None, description="User or organisation; null: the user of the API key."
    )
    mode: TrackerMode = Field(TrackerMode.ONLINE, description="Transmission of the metrics.")


class TrackioTracker(SpecModel):
    """A run of Trackio, in a process of its own: by default in a database in trackers/NAME of the run
    directory.

    Tokens are read from HF_TOKEN and TRACKIO_WRITE_TOKEN in the driver's environment, never from the job.
    """

    project: ShortText = Field("kubealign", description="Project of the run.")
    server_url: HttpAddress | None = Field(
        None, description="URL of a Trackio server; null: files in trackers/NAME of the run directory."
    )
    space: ShortText | None = Field(
        None, description="Space of the Hugging Face hub that receives the metrics, such as user/name."
    )

    @model_validator(mode="after")
    def _destination(self) -> "TrackioTracker":
        """Check that at most one of serverUrl and space is set, and that the URL has no token."""
        if self.server_url is not None and self.space is not None:
            raise field_errors(type(self).__name__, (("space",), self.space, ONE_TRACKIO_DESTINATION))
        if self.server_url is not None and "write_token" in self.server_url:
            raise field_errors(type(self).__name__, (("serverUrl",), "...", NO_TRACKIO_TOKEN))
        return self


class JsonLinesTracker(SpecModel):
    """A file trackers/NAME/metrics.jsonl in the run directory: one object per step, with the metrics under
    `metrics`.
    """


class TrackerPlugin(SpecModel):
    """A tracker of another package."""

    name: ShortText = Field(description="Name of the tracker's entry point in the group kubealign.trackers.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, max_length=256, description="Parameters of the plugin, which validates them."
    )


#: Kinds of trackers.
TrackerValue = (
    TensorBoardTracker
    | WeightsAndBiasesTracker
    | MlflowTracker
    | SwanLabTracker
    | TrackioTracker
    | JsonLinesTracker
    | TrackerPlugin
)


class TrackerSpec(SpecModel):
    """One experiment tracker: exactly one of tensorBoard, weightsAndBiases, mlflow, swanLab, trackio,
    jsonLines and plugin.

    A tracker that fails or hangs never delays the job.
    """

    name: EntryName = Field(
        description="Unique in the job; files are written to trackers/NAME of the run directory."
    )
    completions: int = Field(
        0,
        ge=0,
        le=256,
        description="Responses of each step, and of each validation, that the tracker receives with their "
        "prompts and rewards, as the table `completions`: the best, the worst, then drawn ones. 0: none.",
    )
    tensor_board: TensorBoardTracker | None = Field(None, description="TensorBoard event files.")
    weights_and_biases: WeightsAndBiasesTracker | None = Field(None, description="Weights & Biases.")
    mlflow: MlflowTracker | None = Field(None, description="MLflow.")
    swan_lab: SwanLabTracker | None = Field(None, description="SwanLab.")
    trackio: TrackioTracker | None = Field(None, description="Trackio.")
    json_lines: JsonLinesTracker | None = Field(None, description="A JSON Lines file.")
    plugin: TrackerPlugin | None = Field(None, description="A tracker of another package.")

    @model_validator(mode="after")
    def _one_place(self) -> "TrackerSpec":
        """Check that exactly one member is set."""
        require_exactly_one(self, list(TRACKER_MEMBERS), example="tensorBoard: {}")
        return self

    @property
    def value(self) -> TrackerValue:
        """The member that is set."""
        tracker = next(
            getattr(self, member) for member in TRACKER_MEMBERS if getattr(self, member) is not None
        )
        assert isinstance(tracker, TrackerValue)
        return tracker

    @property
    def sends_online(self) -> bool:
        """True if the tracker sends data out of the job's volume."""
        tracker = self.value
        if isinstance(tracker, WeightsAndBiasesTracker | SwanLabTracker):
            return tracker.mode is TrackerMode.ONLINE
        if isinstance(tracker, TrackioTracker):
            return tracker.server_url is not None or tracker.space is not None
        return isinstance(tracker, TrackerPlugin) or (
            isinstance(tracker, MlflowTracker) and tracker.tracking_uri is not None
        )


#: Fields of `TrackerSpec`, exactly one of which is set.
TRACKER_MEMBERS = (
    "tensor_board",
    "weights_and_biases",
    "mlflow",
    "swan_lab",
    "trackio",
    "json_lines",
    "plugin",
)
