"""Manifest of a checkpoint and the files that it lists.

The manifest is written last: it makes the checkpoint valid.
"""

from datetime import datetime
from pathlib import Path
from typing import Literal

import xxhash
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from kubealign.object_storage.relative_name import RelativeName

_CHUNK = 4 << 20


class ShardFile(BaseModel):
    """One file. name: path within the folder, with slashes. digest: xxh3-128, hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: RelativeName
    size_bytes: int = Field(ge=0)
    digest: str = Field(pattern="^[0-9a-f]{32}$")


def file_digest(path: Path) -> str:
    """Return the xxh3-128 of a file's bytes, hexadecimal."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return str(digest.hexdigest())


def describe_shards(directory: Path) -> list[ShardFile]:
    """Return all files below a folder, sorted by name."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [
        ShardFile(
            name=path.relative_to(directory).as_posix(),
            size_bytes=path.stat().st_size,
            digest=file_digest(path),
        )
        for path in paths
    ]


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
