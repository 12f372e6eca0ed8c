"""Parsing and formatting of byte amounts and bandwidths."""

import re

from kubealign.planning.errors import PlanError

KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "ki": KIB,
    "mi": MIB,
    "gi": GIB,
    "ti": 2**40,
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?(?:/s)?\s*", re.IGNORECASE)


def parse_amount(text: str, label: str) -> int:
    """Parse 80GiB, 80Gi, 50GB/s or 1000 into bytes (per second).

    Raises:
        PlanError: Not an amount; the message begins with `label`.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS or float(match[1]) <= 0:
        raise PlanError(f"{label} is {text!r}; it must be an amount above 0 such as 80GiB, 40Gi or 50GB/s")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(count: float) -> str:
    """Format bytes in binary units with three digits."""
    for unit, size in (("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            number = count / size
            return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f} {unit}"
    return f"{count:.0f} B"
