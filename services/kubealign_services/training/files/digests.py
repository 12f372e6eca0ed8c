"""Digests of checkpoint files, which detect an altered or truncated file before its use."""

import json
from pathlib import Path
from typing import Any

import xxhash


def description_digest(description: dict[str, Any]) -> str:
    """Return the xxh3-128 digest in hexadecimal of a description without its own field `digest`."""
    body = {key: value for key, value in description.items() if key != "digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def file_digest(path: Path) -> str:
    """Return the xxh3-128 digest of a file in hexadecimal. Raises OSError."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
