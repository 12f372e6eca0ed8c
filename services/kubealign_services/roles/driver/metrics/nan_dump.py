"""Dump of the batch that produced NaN or infinity, for debugging."""

from pathlib import Path

from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch


def dump_batch(run_dir: Path, step: int, batch: Batch) -> Path:
    """Write the step's batch as safetensors (columns as in batch.proto) and its sample ids as a text file;
    return the path.
    """
    folder = run_dir / "evidence"
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:06d}.safetensors"
    message = encode(batch)
    path.write_bytes(message.columns)
    path.with_suffix(".samples.txt").write_text("\n".join(message.sample_ids) + "\n")
    return path
