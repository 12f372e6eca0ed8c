"""Experiment trackers that receive a job's metrics."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import HTTP_ADDRESS_PATTERN, EntryName, ShortText, SpecModel, require_exactly_one

HttpAddress: TypeAlias = Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)]


class TensorBoardTracker(SpecModel):
    """Event files in trackers/NAME of the run directory, for `tensorboard --logdir`."""


class TrackerMode(StrEnum):
    """Online: metrics are sent while the job runs.

    Offline: metrics are written to trackers/NAME of the run directory, for a later `wandb sync`.
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


class TrackerSpec(SpecModel):
    """One experiment tracker: exactly one of tensorBoard, weightsAndBiases, mlflow, jsonLines and plugin.

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
    json_lines: JsonLinesTracker | None = Field(None, description="A JSON Lines file.")
    plugin: TrackerPlugin | None = Field(None, description="A tracker of another package.")

    @model_validator(mode="after")
    def _one_place(self) -> "TrackerSpec":
        """Check that exactly one member is set."""
        require_exactly_one(self, list(TRACKER_MEMBERS), example="tensorBoard: {}")
        return self

    @property
    def value(
        self,
    ) -> TensorBoardTracker | WeightsAndBiasesTracker | MlflowTracker | JsonLinesTracker | TrackerPlugin:
        """The member that is set."""
        tracker = next(
            getattr(self, member) for member in TRACKER_MEMBERS if getattr(self, member) is not None
        )
        assert isinstance(
            tracker,
            TensorBoardTracker | WeightsAndBiasesTracker | MlflowTracker | JsonLinesTracker | TrackerPlugin,
        )
        return tracker

    @property
    def sends_online(self) -> bool:
        """True if the tracker sends data out of the job's volume."""
        tracker = self.value
        if isinstance(tracker, WeightsAndBiasesTracker):
            return tracker.mode is TrackerMode.ONLINE
        return isinstance(tracker, TrackerPlugin) or (
            isinstance(tracker, MlflowTracker) and tracker.tracking_uri is not None
        )


#: Fields of `TrackerSpec`, exactly one of which is set.
TRACKER_MEMBERS = ("tensor_board", "weights_and_biases", "mlflow", "json_lines", "plugin")
