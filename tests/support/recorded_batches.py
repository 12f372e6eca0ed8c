"""Batches that a job has recorded with checkpoint.recordBatches."""

from collections.abc import Iterator
from pathlib import Path

from kubealign.replay.record import list_recorded_steps, read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch


def recorded_batches(run: Path, steps: int) -> Iterator[Batch]:
    """Yield the batch of each of the steps 1 to `steps`, which are those recorded in the run directory."""
    assert list_recorded_steps(run / "batches") == [*range(1, steps + 1)]
    for step in range(1, steps + 1):
        record = read_record(run / "batches", step)
        columns = read_batch(run / "batches", record)
        yield decode(
            batch_pb2.PackedBatch(sample_ids=record.sample_ids, columns=columns, digest=record.digest)
        )
