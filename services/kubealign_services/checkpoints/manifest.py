"""Manifest of a checkpoint and the files that it lists. The manifest is written last: it makes the checkpoint
valid.
"""

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from kubealign_services.checkpoints.shards import ShardFile


class CheckpointManifest(BaseModel):
    """State of a job at the end of a step, and the files that hold it.

    shards: role -> files that the role wrote into its folder of the checkpoint.
    driver_state: the driver's state model as a JSON object, opaque to this module.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: Literal[1] = 1
    job: str
    step: int = Field(ge=0)
    weight_version: int = Field(ge=0)
    fence: int = Field(ge=0)
    shards: dict[str, list[ShardFile]]
    driver_state: dict[str, JsonValue]
    created: AwareDatetime = Field(default_factory=lambda: datetime.now().astimezone())
