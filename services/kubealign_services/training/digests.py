"""Digests of a checkpoint's files: a file that was altered or cut short is found out before it is used."""

import json
from pathlib import Path
from typing import Any

import xxhash


def digest_of_description(description: dict[str, Any]) -> str:
    """xxh3-128 in hexadecimal of all but the description's own `digest`."""
    body = {key: value for key, value in description.items() if key != "digest"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def digest_of_file(path: Path) -> str:
    """xxh3-128 in hexadecimal. Raises OSError."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
