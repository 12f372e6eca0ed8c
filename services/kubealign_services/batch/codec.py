"""Serialises batches as one safetensors blob with a digest. No pickle."""

import numpy as np
import torch
import xxhash
from safetensors.numpy import load, save

from kubealign.v1 import batch_pb2
from kubealign_services.batch.packed import Batch


class CorruptBatch(ValueError):
    """The bytes differ from the bytes that were sent, or do not hold a batch."""


def digest_of(data: bytes) -> str:
    """Return the xxh3-128 digest in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def encode(batch: Batch) -> batch_pb2.PackedBatch:
    """Encode a batch as a message."""
    arrays: dict[str, np.ndarray] = {"tokens": batch.tokens.numpy(), "cu_seqlens": batch.cu_seqlens.numpy()}
    arrays.update({f"token.{name}": column.numpy() for name, column in batch.token_columns.items()})
    arrays.update({f"sequence.{name}": column.numpy() for name, column in batch.sequence_columns.items()})
    arrays.update(
        {f"scalar.{name}": np.asarray(value, dtype=np.float64) for name, value in batch.scalars.items()}
    )
    blob = save({name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()})
    return batch_pb2.PackedBatch(sample_ids=batch.sample_ids, columns=blob, digest=digest_of(blob))


def decode(message: batch_pb2.PackedBatch) -> Batch:
    """Decode a message into a batch. Raises CorruptBatch when the digest or the shapes do not fit."""
    arrays = decode_columns(message.columns, message.digest)
    if "tokens" not in arrays or "cu_seqlens" not in arrays:
        raise CorruptBatch(f"a batch needs tokens and cu_seqlens; the columns are {sorted(arrays)}")
    try:
        return Batch(
            tokens=arrays["tokens"],
            cu_seqlens=arrays["cu_seqlens"],
            sample_ids=list(message.sample_ids),
            token_columns=_with_prefix(arrays, "token."),
            sequence_columns=_with_prefix(arrays, "sequence."),
            scalars={name: float(value) for name, value in _with_prefix(arrays, "scalar.").items()},
        )
    except ValueError as error:
        raise CorruptBatch(str(error)) from error


def encode_columns(columns: dict[str, torch.Tensor]) -> tuple[bytes, str]:
    """Encode named tensors. Returns (safetensors blob, digest)."""
    blob = save({name: np.ascontiguousarray(column.numpy()) for name, column in columns.items()})
    return blob, digest_of(blob)


def decode_columns(blob: bytes, digest: str) -> dict[str, torch.Tensor]:
    """Decode a safetensors blob into named tensors that own their memory.

    Raises CorruptBatch when the digest differs or the blob cannot be read.
    """
    actual = digest_of(blob)
    if actual != digest:
        raise CorruptBatch(f"the columns have digest {actual}, expected {digest}")
    try:
        return {name: torch.from_numpy(array.copy()) for name, array in load(blob).items()}
    except Exception as error:
        raise CorruptBatch(f"the columns are not a safetensors blob: {error}") from error


def _with_prefix(arrays: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
