"""Which principle is for what. Pure."""

from collections.abc import Sequence

import xxhash


def drawn(principles: Sequence[str], seed: int, name: str) -> str:
    """One of them, the same for the same seed and name."""
    return principles[xxhash.xxh3_64_intdigest(f"{seed}:principle:{name}".encode()) % len(principles)]
