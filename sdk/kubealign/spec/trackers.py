"""Where a job's figures go besides its own files and the dashboard."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import HTTP_ADDRESS, Name, ShortText, Spec, exactly_one

HttpAddress: TypeAlias = Annotated[str, Field(pattern=HTTP_ADDRESS, max_length=1024)]


class TensorBoard(Spec):
    """Event files in trackers/NAME of the run's folder, for `tensorboard --logdir`."""


class TrackerMode(StrEnum):
    """Online: sent while the job runs. Offline: files in trackers/NAME of the run's folder, to be sent with
    `wandb sync`."""

    ONLINE = "Online"
    OFFLINE = "Offline"


class WeightsAndBiases(Spec):
    """A run of Weights & Biases. Its key is WANDB_API_KEY in the driver's environment, never in a job."""

    project: ShortText = Field("kubealign", description="The project that the run belongs to.")
    entity: ShortText | None = Field(None, description="The team or user; null: the key's own.")
    mode: TrackerMode = Field(TrackerMode.ONLINE, description="Whether the figures are sent.")
    base_url: HttpAddress | None = Field(
        None,
        description="A server of your own; null: the one that WANDB_BASE_URL names, else the public one.",
    )


class Mlflow(Spec):
    """A run of MLflow. What its server asks for is in the driver's environment (MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD), never in a job."""

    tracking_uri: HttpAddress | None = Field(
        None, description="The tracking server; null: files in trackers/NAME of the run's folder."
    )
    experiment: ShortText = Field("kubealign", description="Made where there is none of this name.")


class JsonLines(Spec):
    """A file trackers/NAME/metrics.jsonl in the run's folder: one object a step, its figures under
    `metrics`."""


class TrackerPlugin(Spec):
    """A tracker of another package."""

    name: ShortText = Field(description="Name of its entry point in the group kubealign.trackers.")
    parameters: dict[str, Any] = Field(
        default_factory=dict, max_length=256, description="What it is made with; it checks them itself."
    )


class Tracker(Spec):
    """One place, exactly one of tensorBoard, weightsAndBiases, mlflow, jsonLines and plugin. A tracker that
    fails or hangs never holds up the job."""

    name: Name = Field(description="Unique in the job; its files lie in trackers/NAME of the run's folder.")
    tensor_board: TensorBoard | None = Field(None, description="TensorBoard's event files.")
    weights_and_biases: WeightsAndBiases | None = Field(None, description="Weights & Biases.")
    mlflow: Mlflow | None = Field(None, description="MLflow.")
    json_lines: JsonLines | None = Field(None, description="A file of JSON lines.")
    plugin: TrackerPlugin | None = Field(None, description="A tracker of another package.")

    @model_validator(mode="after")
    def _one_place(self) -> "Tracker":
        exactly_one(self, list(MEMBERS), example="tensorBoard: {}")
        return self

    @property
    def value(self) -> TensorBoard | WeightsAndBiases | Mlflow | JsonLines | TrackerPlugin:
        """The member that is set."""
        held = next(getattr(self, member) for member in MEMBERS if getattr(self, member) is not None)
        assert isinstance(held, TensorBoard | WeightsAndBiases | Mlflow | JsonLines | TrackerPlugin)
        return held

    @property
    def online(self) -> bool:
        """Whether it sends anything beyond the job's own volume."""
        held = self.value
        if isinstance(held, WeightsAndBiases):
            return held.mode is TrackerMode.ONLINE
        return isinstance(held, TrackerPlugin) or (isinstance(held, Mlflow) and held.tracking_uri is not None)


#: The members of a tracker, of which one is set.
MEMBERS = ("tensor_board", "weights_and_biases", "mlflow", "json_lines", "plugin")
