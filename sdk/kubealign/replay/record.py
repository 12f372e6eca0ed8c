"""What each step of a run was trained on, as it lies in RUN/batches.

step-00000012.safetensors: the batch, its columns as in batch.proto. step-00000012.json: one line that says of
it what a batch does not hold, and its checksum. The line is removed first and written last, so a batch with a
line is whole.
"""

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.replay.errors import CannotReplay

FOLDER = "batches"
_LINE = re.compile(r"step-(\d{8,})\.json")


class RecordedStep(BaseModel):
    """One step's batch. sample_ids: of its sequences. groups: its prompts, in their order; of given rows the
    names of their sequences. attempts: of each group that was sampled, how often it had been asked for again;
    empty for given rows.

    version: of the weights that trained on it. algorithm_state: digest of what the algorithm had kept until
    then. digest: xxh3-128 of the batch's file, hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    step: int = Field(ge=1)
    version: int = Field(ge=0)
    fence: int = Field(ge=0)
    seed: int
    sample_ids: list[str]
    groups: list[str]
    attempts: list[int]
    algorithm_state: str
    digest: str
    size_bytes: int = Field(ge=0)


def batch_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.safetensors"


def line_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.json"


def recorded_steps(folder: Path) -> list[int]:
    """The steps that have a line, in their order."""
    if not folder.is_dir():
        return []
    found = (_LINE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def read_line(folder: Path, step: int) -> RecordedStep:
    """What is said of a step's batch. Raises CannotReplay, with the file that is missing or damaged."""
    path = line_path(folder, step)
    try:
        line = RecordedStep.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CannotReplay(f"step {step}: {path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise CannotReplay(
            f"step {step}: {path} is not the record of a step ({place}: {first['msg']})"
        ) from error
    if line.step != step:
        raise CannotReplay(f"step {step}: {path} is the record of step {line.step}")
    return line


def read_batch(folder: Path, line: RecordedStep) -> bytes:
    """The bytes of a step's batch, as they were written. Raises CannotReplay for a file that is missing or
    has been altered."""
    # With what runs jobs, not with the bare sdk.
    import xxhash

    path = batch_path(folder, line.step)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CannotReplay(f"step {line.step}: {path} cannot be read ({error.strerror})") from error
    found = xxhash.xxh3_128_hexdigest(data)
    if found != line.digest:
        raise CannotReplay(
            f"step {line.step}: {path} has been altered: its checksum is {found}, recorded was {line.digest}"
        )
    return data
