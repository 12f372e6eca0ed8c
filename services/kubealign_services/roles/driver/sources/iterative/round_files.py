"""Files with the rows of each round, in `rounds/` of the run directory.

A file names the weights and the prompts of its rows, by the weights' digest and the position in the data.
After a crash at any moment a complete round is found again by these two. After a rollback, if the steps
before the round came out differently, the weights differ and the round is generated again. Files of
different fences have different names, so no file that a state names is ever replaced.

A file is a line of JSON (the header) followed by the packed batch of the wire format. It appears complete
or not at all. Files are kept as long as the run directory exists: any checkpoint may be in the middle of
any round.
"""

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import xxhash
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ConfigDict

from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.durable_files import replace_file
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.roles.driver.errors import UnrecoverableError

ROUNDS_FOLDER = "rounds"

log = logging.getLogger(__name__)


class DataPosition(BaseModel):
    """Position in the data, as in JobState."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: EpochCursor
    unfinished: list[str]


class RoundHeader(BaseModel):
    """Origin of a round's rows.

    weights: digest of the weights that generated the rows, `version` under `fence`. begins, ends: data
    position before and after the prompts. given_up: prompts that failed and were replaced. rewards:
    moments of the rewards after the round. unit: sequences per row.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    fence: int
    version: int
    weights: str
    begins: DataPosition
    ends: DataPosition
    prompts: list[str]
    given_up: list[str]
    rewards: dict[str, dict[str, float]]
    figures: dict[str, float]
    unit: int


@dataclass(frozen=True)
class StoredRound:
    """A stored round. digest: of the whole file, xxh3-128 in hexadecimal."""

    header: RoundHeader
    batch: Batch
    file: str
    digest: str

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.batch) // self.header.unit

    def select_rows(self, rows: list[int]) -> Batch:
        """Return the rows with these indices, from 0."""
        unit = self.header.unit
        return self.batch.select([row * unit + offset for row in rows for offset in range(unit)])


class RoundFiles:
    """Round files of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / ROUNDS_FOLDER

    def write(self, header: RoundHeader, batch: Batch) -> StoredRound:
        """Store a round durably. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{_file_prefix(header.round)}fence-{header.fence}"
        data = header.model_dump_json().encode() + b"\n" + encode(batch).SerializeToString()
        replace_file(self._folder / name, [data])
        return StoredRound(header, batch, name, _digest(data))

    def read(self, name: str, digest: str) -> StoredRound:
        """Return the round that a state is in the middle of.

        Raises UnrecoverableError if the file is missing or another.
        """
        path = self._folder / name
        remedy = "the job is in the middle of this round: restore the file, or start the job afresh"
        try:
            stored = _read_file(path)
        except (OSError, ValueError, DecodeError) as error:
            raise UnrecoverableError(f"the rows of a round cannot be read ({error}): {remedy}") from error
        if stored.digest != digest:
            raise UnrecoverableError(
                f"{path} has digest {stored.digest}, the job trains on {digest}: {remedy}"
            )
        return stored

    def find(self, number: int, weights: str, begins: DataPosition) -> StoredRound | None:
        """Return the round of this number, generated with these weights from this data position; None if none
        exists.
        """
        for path in sorted(self._folder.glob(f"{_file_prefix(number)}*")):
            try:
                stored = _read_file(path)
            except (OSError, ValueError, DecodeError) as error:
                log.warning(
                    "a round file cannot be read; generating the round again", extra={"cause": str(error)}
                )
                continue
            if stored.header.weights == weights and stored.header.begins == begins:
                return stored
            log.info("a round file has other weights; generating the round again", extra={"file": str(path)})
        return None


def _file_prefix(number: int) -> str:
    return f"round-{number:06d}-"


def _read_file(path: Path) -> StoredRound:
    """Read and decode one round file. Raises OSError, ValueError, DecodeError."""
    data = path.read_bytes()
    head, _, body = data.partition(b"\n")
    batch = decode(batch_pb2.PackedBatch.FromString(body))
    return StoredRound(RoundHeader.model_validate_json(head), batch, path.name, _digest(data))


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
