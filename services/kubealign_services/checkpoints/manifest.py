"""The manifest of a commit. It is written last: the manifest is the commit."""

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from kubealign_services.checkpoints.shards import ShardFile


class CommitManifest(BaseModel):
    """What a job is at the end of a step, and which files say so.

    shards: role -> the files that it wrote into the commit's folder of that name.
    driver_state: the driver's own model as a JSON object, opaque here.
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
