"""Recorded batches of a run's steps in RUN/batches.

step-00000012.safetensors: the batch, its columns as in batch.proto. step-00000012.json: one line with the
step's other inputs and the batch's checksum. The line is removed first and written last, so a batch with a
line is complete.
"""

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubealign.replay.plan import ReplayError

FOLDER = "batches"
_RECORD_NAME = re.compile(r"step-(\d{8,})\.json")


class RecordedStep(BaseModel):
    """Record of one step's batch.

    sample_ids: of its sequences. groups: its prompts, in order; for given rows the names of their
    sequences. attempts: number of retries of each sampled group; empty for given rows.

    version: of the weights that trained on the batch. algorithm_state: digest of the algorithm's state
    before the step.
    digest: xxh3-128 of the batch's file, hexadecimal.
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


def record_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.json"


def list_recorded_steps(folder: Path) -> list[int]:
    """Return the steps that have a record, ascending."""
    if not folder.is_dir():
        return []
    matches = (_RECORD_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_record(folder: Path, step: int) -> RecordedStep:
    """Read the record of a step. Raises ReplayError, with the file that is missing or damaged."""
    path = record_path(folder, step)
    try:
        line = RecordedStep.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ReplayError(f"step {step}: {path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise ReplayError(
            f"step {step}: {path} is not the record of a step ({field}: {first['msg']})"
        ) from error
    if line.step != step:
        raise ReplayError(f"step {step}: {path} is the record of step {line.step}")
    return line


def read_batch(folder: Path, recorded_step: RecordedStep) -> bytes:
    """Return the bytes of a step's batch. Raises ReplayError for a file that is missing or was altered."""
    # xxhash is installed with the services, not with the bare SDK.
    import xxhash

    path = batch_path(folder, recorded_step.step)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReplayError(f"step {recorded_step.step}: {path} cannot be read ({error.strerror})") from error
    actual_digest = xxhash.xxh3_128_hexdigest(data)
    if actual_digest != recorded_step.digest:
        raise ReplayError(
            f"step {recorded_step.step}: {path} has been altered: its checksum is {actual_digest}, "
            f"{recorded_step.digest} was recorded"
        )
    return data
