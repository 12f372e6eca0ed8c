"""Choice of principles. Pure."""

from collections.abc import Sequence

import xxhash


def sample_principle(principles: Sequence[str], seed: int, name: str) -> str:
    """Return one of the principles, the same for the same seed and name."""
    return principles[xxhash.xxh3_64_intdigest(f"{seed}:principle:{name}".encode()) % len(principles)]
