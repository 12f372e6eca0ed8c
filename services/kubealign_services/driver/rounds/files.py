"""The rows of each round, kept in `rounds/` of the run's folder.

A file says which weights and which prompts its rows were made with, by the weights' digest and the place in
the data. After a crash at any moment a round that is there whole is found again by these; after a rollback
the weights are others where the steps before them came out otherwise, and then the round is made anew. Files
of different fences have different names, so none that a state names is ever replaced.

A file: a line of JSON (the header), then the packed batch of the wire. It appears whole or not at all. Files
are kept as long as the run's folder is: any commit may be in the middle of any round.
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
from kubealign_services.checkpoints.durable import replace
from kubealign_services.data.order import Cursor
from kubealign_services.driver.failures import JobFailed

FOLDER = "rounds"

log = logging.getLogger(__name__)


class Supplied(BaseModel):
    """A place in the data: as in JobState."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: Cursor
    unfinished: list[str]


class RoundHeader(BaseModel):
    """What a round's rows are made of. weights: digest of the weights that made them, `version` under
    `fence`. begins, ends: the place in the data before and after its prompts. given_up: prompts that others
    took the place of. rewards: moments of the rewards after it. unit: sequences of a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    fence: int
    version: int
    weights: str
    begins: Supplied
    ends: Supplied
    prompts: list[str]
    given_up: list[str]
    rewards: dict[str, dict[str, float]]
    figures: dict[str, float]
    unit: int


@dataclass(frozen=True)
class Round:
    """A round as it is kept. digest: of the whole file, xxh3-128 in hexadecimal."""

    header: RoundHeader
    batch: Batch
    file: str
    digest: str

    @cached_property
    def rows(self) -> int:
        return len(self.batch) // self.header.unit

    def take(self, rows: list[int]) -> Batch:
        """These of its rows, by index from 0."""
        unit = self.header.unit
        return self.batch.select([row * unit + place for row in rows for place in range(unit)])


class RoundFiles:
    """The files of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER

    def write(self, header: RoundHeader, batch: Batch) -> Round:
        """Keep a round; it is on the disk when this returns. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{_prefix(header.round)}fence-{header.fence}"
        data = header.model_dump_json().encode() + b"\n" + encode(batch).SerializeToString()
        replace(self._folder / name, [data])
        return Round(header, batch, name, _digest(data))

    def read(self, name: str, digest: str) -> Round:
        """The round that a state is in the middle of. Raises JobFailed where its file has gone, or is
        another."""
        path = self._folder / name
        remedy = "the job is in the middle of this round: put the file back, or start the job afresh"
        try:
            found = _read(path)
        except (OSError, ValueError, DecodeError) as error:
            raise JobFailed(f"the rows of a round cannot be read ({error}): {remedy}") from error
        if found.digest != digest:
            raise JobFailed(f"{path} has digest {found.digest}, the job learns from {digest}: {remedy}")
        return found

    def made_with(self, number: int, weights: str, begins: Supplied) -> Round | None:
        """A round of this number that these weights made of the prompts from here on; None: there is none."""
        for path in sorted(self._folder.glob(f"{_prefix(number)}*")):
            try:
                found = _read(path)
            except (OSError, ValueError, DecodeError) as error:
                log.warning(
                    "the rows of a round cannot be read: it is made again", extra={"cause": str(error)}
                )
                continue
            if found.header.weights == weights and found.header.begins == begins:
                return found
            log.info("a round was made with other weights: it is made again", extra={"file": str(path)})
        return None


def _prefix(number: int) -> str:
    return f"round-{number:06d}-"


def _read(path: Path) -> Round:
    data = path.read_bytes()
    head, _, body = data.partition(b"\n")
    batch = decode(batch_pb2.PackedBatch.FromString(body))
    return Round(RoundHeader.model_validate_json(head), batch, path.name, _digest(data))


def _digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
