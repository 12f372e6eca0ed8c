"""Files of a rank's shard: a file of tensors, and a JSON description with the digests of both."""

import json
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.checkpoints.durable_files import fsync_path
from kubealign_services.training.contract import CorruptCheckpoint


def write_shard(
    tensors_file: Path, tensors: dict[str, Tensor], description_file: Path, description: dict[str, Any]
) -> list[str]:
    """Write both files, with this process's RNG states among the tensors and the digests in the description.

    Returns the file names once both files are synced to disk. Raises OSError, naming the file that cannot be
    written.

    Args:
        tensors: CPU tensors, contiguous.
    """
    tensors = {**tensors, "rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    try:
        save_file(tensors, tensors_file)
    except SafetensorError as error:
        raise OSError(f"{tensors_file} cannot be written: {error}") from error
    description = {**description, "tensors_digest": file_digest(tensors_file)}
    description["digest"] = description_digest(description)
    description_file.write_text(json.dumps(description, indent=1))
    for path in (tensors_file, description_file, tensors_file.parent):
        fsync_path(path)
    return [tensors_file.name, description_file.name]


def read_shard_description(path: Path) -> dict[str, Any]:
    """Read a description written by `write_shard`.

    Raises CorruptCheckpoint for a file that cannot be read or was altered.
    """
    try:
        description = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
    if not isinstance(description, dict) or description.get("digest") != description_digest(description):
        raise CorruptCheckpoint(f"{path} is not as it was written: its digest differs")
    return description


def check_adapter(path: Path, saved: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    """Raise CorruptCheckpoint, naming the file, when the two identities (see `adapter_identity`) differ."""
    if saved != expected:
        raise CorruptCheckpoint(f"{path} is of {_describe(saved)}; this job trains {_describe(expected)}")


def adapter_identity(lora: Lora | None) -> dict[str, Any] | None:
    """Return the settings that identify an adapter: all but the dropout, which changes no weight.

    The base's quantization is left out where there is none, as in checkpoints of versions without it.
    """
    if lora is None:
        return None
    hidden = {"dropout"} if lora.quantization is not None else {"dropout", "quantization"}
    return lora.model_dump(mode="json", by_alias=True, exclude=hidden)


def file_digest(path: Path) -> str:
    """Return the xxh3-128 digest of a file in hexadecimal. Raises OSError."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def description_digest(description: dict[str, Any]) -> str:
    """Return the xxh3-128 digest in hexadecimal of a description without its own field `digest`."""
    body = {key: value for key, value in description.items() if key != "digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def _describe(adapter: dict[str, Any] | None) -> str:
    return "all weights" if adapter is None else f"an adapter with lora {json.dumps(adapter)}"
